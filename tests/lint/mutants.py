#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/mutants plants faults that a test finds, says which tests find nothing, and goes on where it was stopped: a toy project.

mutants.py SOURCE
"""
import os
import re
import subprocess
import sys
import tempfile

TOY = {
    'meson.build': """project('toy', 'c')
toy = static_library('toy', 'room/toy.c')
foreach name : ['strong', 'again', 'weak', 'red']
  test(name, executable(name, name + '.c', link_with: toy), suite: 'unit')
endforeach
""",
    'room/toy.c': """static const int table[2] = {3, 4}; /* constants of the compiler are left alone */
static int calls;
static void count(int by)
{
    calls += by;
}
int toy(int x)
{
    static const int more = 7;
    enum { LIMIT = 40 };
    int sum = 0;
    count(1);
    if (x >= 10)
        sum += more;
    if (x >= 20)
        sum += table[1];
    if (x >= 30 && x < LIMIT)
        sum += 8;
    return sum;
}
int toy_calls(void)
{
    return calls;
}
int nobody(int x)
{
    return x == 1 || x == 2;
}
""",
    'strong.c': """int toy(int x), toy_calls(void);
int main(void)
{
    return !(toy(0) == 0 && toy(15) == 7 && toy(25) == 11 && toy(35) == 19 && toy(10) == 7 && toy(20) == 11 && toy(30) == 19 && toy(40) == 11 &&
             toy_calls() == 8);
}
""",
    'weak.c': 'int toy(int x);\nint main(void)\n{\n    return toy(3) == -1;\n}\n',
    'red.c': 'int main(void)\n{\n    return 1;\n}\n',
}
TOY['again.c'] = TOY['strong.c'].replace('toy(10) == 7 && toy(20) == 11 && toy(30) == 19 && toy(40) == 11 &&', '').replace('== 8);', '== 4);')


def run(source, toy):
    return subprocess.run([sys.executable, os.path.join(source, 'scripts', 'mutants'), '--source', toy, '--rooms', 'room', '--suites', 'unit', '--jobs', '2',
                           '--', '--buildtype=debug'], capture_output=True, text=True, check=False)


def main():
    source, wrong = sys.argv[1], []
    with tempfile.TemporaryDirectory() as toy:
        os.mkdir(os.path.join(toy, 'room'))
        for name, text in TOY.items():
            with open(os.path.join(toy, name), 'w', encoding='utf-8') as file:
                file.write(text)
        first, second = run(source, toy), run(source, toy)
        unchanged = all(open(os.path.join(toy, name), encoding='utf-8').read() == text for name, text in TOY.items())
    out = first.stdout

    def expect(what, seen):
        if not seen:
            wrong.append(what)

    expect('both runs succeed', first.returncode == 0 and second.returncode == 0)
    expect('the sources are as before', unchanged)
    expect('a test that fails without a mutant does not count', '4 tests of which 3 pass in time' in out and '\nred ' not in out)
    expect('a second run has nothing to do', ', 0 runs to go' in second.stdout and second.stdout.split('\n', 1)[1] == out.split('\n', 1)[1])
    killed = re.search(r'^all +(\d+) ', out, re.M)
    expect('nobody is not reached', re.search(r'room/toy\.c:27: condition \d+ is not reached', out))
    expect('most mutants are noticed', killed and int(killed[1]) >= 6)
    expect('constants of the compiler are left alone', not re.search(r'toy\.c:(?:1|9|10):', out))
    expect('"strong" alone notices other bounds', re.search(r'^strong +\S+ +\d+ +\d+ +[1-9]\d*$', out, re.M))
    expect('"weak" and "again" are redundant', len(re.findall(r'^(?:weak|again) .*kills nothing that others do not', out, re.M)) == 2)
    if wrong:
        sys.exit('\n'.join(wrong) + f'\n{out}{first.stderr}{second.stdout}{second.stderr}')


if __name__ == '__main__':
    main()
