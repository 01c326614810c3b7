#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The decisions of scripts/gpu-check, without a GPU and without a process: order, limits, verdicts, second runs."""
import os
import pathlib
import re
import sys
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / 'scripts' / 'lib'))
import gpu_decide as decide
import gpu_machine
import gpu_parts
import gpu_table


def run(ratio, host, bare, work=8):
    return {'work': work, 'ratio': [0, ratio, 9], 'host_us': [0, host, 999], 'bare_host_us': [0, bare, 999]}


class Order(unittest.TestCase):
    def names(self, ranks, gpus):
        return [decide.part_name(*one) for one in decide.plan(ranks, gpus)]

    def test_parts_for_one_gpu_come_first(self):
        self.assertEqual(self.names([4, 1, 2], 1), [
            'facts', 'kernels', 'hook-1', 'capture-1', 'whole-1', 'mean-1', 'step-1', 'wire-1', 'train-1', 'wine-1', 'kernels_full',
            'death-2', 'hook-2', 'capture-2', 'whole-2', 'mean-2', 'conformance-2', 'memcheck', 'initcheck', 'gpt-1', 'torch',
            'conformance-1', 'restart-2', 'host-2', 'wine-2', 'death-4', 'hook-4', 'capture-4', 'whole-4', 'mean-4', 'conformance-4',
            'wine-4'])

    def test_times_only_ranks_that_have_a_gpu(self):
        names = self.names([1, 2, 4], 2)
        self.assertIn('step-2', names)
        self.assertNotIn('step-4', names)

    def test_parts_are_unique_and_have_a_limit_and_a_function(self):
        for ranks, gpus in (([1], 1), ([2], 1), ([1, 2, 4, 8], 8), ([2, 4], 4)):
            order = decide.plan(ranks, gpus)
            self.assertEqual(len(order), len(set(order)))
            for part, n in order:
                self.assertGreater(decide.limit(part, n, gpus), 0)
                self.assertIn(part, gpu_parts.PARTS)
        self.assertEqual(set(decide.LIMITS), set(gpu_parts.PARTS))

    def test_every_gpu_program_has_a_part_and_is_in_the_bundle(self):
        def read(path):
            return (ROOT / path).read_text(encoding='utf-8')

        programs = re.findall(r"executable\('(\w+)'", read('tests/gpu/meson.build'))
        self.assertIn('hook', programs)
        for program in programs:
            self.assertIn(f"'tests/gpu/{program}'", read('scripts/lib/gpu_parts.py'))
            self.assertRegex(read('scripts/gpu-bundle'), rf'\btests/gpu/{program}\b')

    def test_parts_are_chosen_by_name_and_by_kind(self):
        order = decide.plan([1, 2], 1)
        self.assertEqual(decide.chosen(order, ['wine']), [('wine', 1), ('wine', 2)])
        self.assertEqual(decide.chosen(order, ['wine-2', 'facts']), [('facts', None), ('wine', 2)])
        self.assertEqual(decide.chosen(order, []), order)
        self.assertEqual(decide.chosen(order, ['win']), [])


class Limits(unittest.TestCase):
    def test_ranks_that_share_a_gpu_get_more_time(self):
        self.assertLess(decide.limit('wine', 4, 4), decide.limit('wine', 4, 1))
        self.assertLess(decide.limit('wine', 2, 1), decide.limit('wine', 4, 1))
        self.assertEqual(decide.limit('memcheck', None, 1), 60)

    def test_ranks_that_share_a_gpu_use_loopback(self):
        self.assertEqual(decide.environment(2, 1, {}), {
            'CDDP_SHARE_GPU': '1', 'NCCL_SOCKET_IFNAME': 'lo', 'NCCL_SOCKET_FAMILY': 'AF_INET'})
        self.assertNotIn('NCCL_SOCKET_IFNAME', decide.environment(2, 1, {'NCCL_SOCKET_IFNAME': 'eth1'}))
        self.assertEqual(decide.environment(2, 2, {}), {})
        self.assertEqual(decide.environment(None, 1, {}), {})


class Plan(unittest.TestCase):
    def test_shows_what_fits_into_the_time(self):
        text = gpu_table.plan([('facts', 40), ('kernels', 60), ('unknown', 9)], {'facts': 4, 'kernels': 5}, 6).splitlines()
        self.assertEqual([line.split()[0] for line in text[1:5]], ['facts', '---', 'kernels', 'unknown'])
        self.assertIn('?', text[4])

    def test_shows_what_has_run_after_5_10_and_15_minutes(self):
        order = [('facts', 40), ('kernels', 300), ('wine-1', 300), ('gpt-1', 400)]
        text = gpu_table.plan(order, {'facts': 4, 'kernels': 200, 'wine-1': 200}, 900).splitlines()
        self.assertEqual(text[-3:], ['after  5 min: 2 of 4 parts, up to kernels; if each takes as long as it may 1, up to facts',
                                     'after 10 min: 3 of 4 parts, up to wine-1; if each takes as long as it may 2, up to kernels',
                                     'after 15 min: 4 of 4 parts; if each takes as long as it may 3, up to wine-1'])
        short = gpu_table.plan(order, {}, 330).splitlines()
        self.assertEqual(short[-1], 'after 15 min: 1 of 4 parts, up to facts; if each takes as long as it may 1, up to facts '
                                    '(it ends after 330 s: --seconds)')
        self.assertIn('after  5 min: 0 of 1 parts; if', gpu_table.plan([('gpt-1', 400)], {}, 480))

    def test_measured_parts_exist(self):
        names = {decide.part_name(*one) for one in decide.plan([1, 2], 8)}
        self.assertEqual(set(decide.ON_H100) - names, set())

    def test_without_nvidia_smi_the_device_files_count(self):
        with unittest.mock.patch.object(gpu_machine, 'smi', return_value=''), \
                unittest.mock.patch.object(gpu_machine, 'nodes', return_value=['/dev/nvidia0']):
            self.assertEqual(gpu_machine.gpus(), [{'name': 'unknown'}])


class Late(unittest.TestCase):
    def test_slow_part_is_skipped(self):
        status, why = decide.late('conformance', 12, 0, silent_s=4, ran_s=180, cut_by_whole=False)
        self.assertEqual(status, 'skipped')
        self.assertIn('12 cases had passed, none had failed', why)

    def test_failure_before_the_limit_stays_a_failure(self):
        self.assertEqual(decide.late('conformance', 12, 1, 4, 180, False)[0], 'failed')
        self.assertEqual(decide.late('conformance', 12, 1, 4, 180, True)[0], 'failed')

    def test_silence_is_a_hang(self):
        status, why = decide.late('conformance', 12, 0, silent_s=61, ran_s=180, cut_by_whole=False)
        self.assertEqual(status, 'failed')
        self.assertIn('hangs', why)
        self.assertEqual(decide.late('hook', 0, 0, silent_s=40, ran_s=40, cut_by_whole=False)[0], 'failed')

    def test_end_of_total_time_is_not_a_failure(self):
        self.assertEqual(decide.late('hook', 0, 0, silent_s=5, ran_s=5, cut_by_whole=True)[0], 'skipped')
        self.assertEqual(decide.late('wine', 1, 0, silent_s=70, ran_s=90, cut_by_whole=True)[0], 'failed')

    def test_a_sanitizer_may_be_silent(self):
        self.assertEqual(decide.late('memcheck', 0, 0, silent_s=60, ran_s=60, cut_by_whole=False)[0], 'skipped')


class Again(unittest.TestCase):
    def test_runs_again_only_failures_with_nccl(self):
        self.assertTrue(decide.again('wine', 'failed', {}, 100))
        self.assertFalse(decide.again('wine', 'passed', {}, 100))
        self.assertFalse(decide.again('wine', 'skipped', {}, 100))
        self.assertFalse(decide.again('kernels', 'failed', {}, 100))
        self.assertFalse(decide.again('wine', 'failed', {}, 5))
        self.assertFalse(decide.again('wine', 'failed', {'NCCL_COMM_BLOCKING': '0'}, 100))

    def test_second_run_uses_the_other_kind(self):
        self.assertEqual(decide.other_kind(22809), ({'CDDP_NCCL_BLOCKING': '0'}, 'CDDP_NCCL_BLOCKING=0'))
        self.assertEqual(decide.other_kind(0)[1], 'CDDP_NCCL_BLOCKING=0')
        self.assertEqual(decide.other_kind(21903)[1], 'CDDP_NCCL_BLOCKING=1')

    def test_second_run_does_not_change_the_status(self):
        self.assertIn('passes', decide.describe_second_run('X=0', 'failed', 'passed'))
        self.assertIn('as well', decide.describe_second_run('X=0', 'failed', 'failed'))
        part = {'name': 'wine-1', 'status': 'failed', 'seconds': 1.0, 'reason': 'other numbers', 'again': {
            'status': 'passed', 'told': decide.describe_second_run('X=0', 'failed', 'passed')}}
        count = decide.counted([part])
        self.assertEqual((count, decide.exit_status(count)), ({'passed': 0, 'failed': 1, 'skipped': 0}, 1))
        self.assertIn('with X=0 it passes', gpu_table.summary(part))
        self.assertIn('with X=0 it passes', gpu_table.line_of(part))


class Measured(unittest.TestCase):
    def test_host_time_is_judged_by_its_difference_to_bare(self):
        slow_host = {'buckets': 40, 'runs': [run(1.0, host=900, bare=700)]}
        self.assertIsNone(decide.judge_step(slow_host)[2])
        dear = {'buckets': 40, 'runs': [run(1.0, host=300, bare=79)]}
        self.assertIn('221.0 us more host time (220 allowed)', decide.judge_step(dear)[2])

    def test_a_step_is_judged_with_work_only(self):
        result = {'buckets': 4, 'runs': [run(1.5, 9, 9, work=0), run(1.01, 9, 9)]}
        self.assertEqual(decide.judge_step(result), (1.01, 0, None))
        self.assertIn('1.0300', decide.judge_step({'buckets': 4, 'runs': [run(1.03, 9, 9)]})[2])

    def test_clipping_does_not_wait_for_the_gpu(self):
        self.assertIsNone(decide.judge_clip({'clip': {'ms': [0, 1.2, 0], 'host_us': [0, 30, 999]}}))
        self.assertIn('it waits', decide.judge_clip({'clip': {'ms': [0, 1.2, 0], 'host_us': [0, 1210, 0]}}))

    def test_a_host_that_waits_takes_as_long_as_the_step(self):
        self.assertIsNone(decide.judge_train({'step_ms': [0, 5.0, 0], 'host_us': [0, 900, 0]}))
        self.assertIn('the host waits', decide.judge_train({'step_ms': [0, 5.0, 0], 'host_us': [0, 4800, 0]}))

    def test_the_last_bucket_cannot_be_hidden(self):
        self.assertAlmostEqual(decide.best_hidden([2] * 4, [1] * 4), 3 / 4)
        self.assertAlmostEqual(decide.best_hidden([1] * 4, [2] * 4), 3 / 8)

    def wire(self, step_ms):
        return decide.judge_wire({'buckets': 10, 'wire_us_per_bucket': 1000, 'compute_ms': [0, 20, 0], 'step_ms': [0, step_ms, 0]})

    def test_losses_of_the_gpt_fall_and_agree(self):
        short = {'loss': [5.54, 5.4]}
        plain = decide.gpt_figures([{'loss': 5.55 - 0.1 * k, 'tokens_per_s': 1000 + k} for k in range(20)])
        self.assertEqual(plain['tokens_per_s'], [1007, 1011, 1015])
        self.assertIsNone(decide.judge_gpt(short, plain, None))
        self.assertIsNone(decide.judge_gpt(short, plain, plain))
        self.assertIn('step 3', decide.judge_gpt(short, plain, plain | {'loss': [5.55, 5.45, 5.3, *plain['loss'][3:]]}))
        self.assertIn('in float32', decide.judge_gpt({'loss': [5.7, 5.6]}, plain, None))
        self.assertIn('does not fall', decide.judge_gpt(short, plain | {'loss': [5.54, 5.55]}, None))
        self.assertIn('not a number', decide.judge_gpt(short, plain | {'loss': [5.54, None]}, None))

    def test_exposed_wire_is_compared_with_the_best_order(self):
        share, best, why = self.wire(21.2)
        self.assertAlmostEqual(share, 0.88)
        self.assertAlmostEqual(best, 0.9)
        self.assertIsNone(why)
        self.assertIn('80.0% of the modelled wire is hidden, 90.0% could be', self.wire(22)[2])
        self.assertEqual(self.wire(99)[0], 0)
        self.assertEqual(self.wire(19)[0], 1)

    def test_library_and_step_times_agree_within_three_points(self):
        result = {'counted_steps': 50, 'compute_ms': [0, 10, 0], 'longer_ms': 2, 'exposed_ms': 2.2, 'comm_ms': 5}
        off, why = decide.judge_library(result)
        self.assertAlmostEqual(off, 0.02)
        self.assertIsNone(why)
        self.assertIsNone(decide.judge_library(result | {'longer_ms': -0.1, 'exposed_ms': 0})[1])
        self.assertIn('but a step takes 2.000 ms longer', decide.judge_library(result | {'exposed_ms': 2.4})[1])
        self.assertIn('but a step takes 2.000 ms longer', decide.judge_library(result | {'exposed_ms': 1.6})[1])
        self.assertIn('of 1.000 ms of communication 2.200 ms', decide.judge_library(result | {'comm_ms': 1})[1])
        self.assertIn('counts no step', decide.judge_library(result | {'counted_steps': 0})[1])


class Clock(unittest.TestCase):
    def test_command_gets_the_rest_of_part_and_total(self):
        clock = gpu_machine.Clock(100)
        clock.start_part(30)
        self.assertLessEqual(clock.left(), 30)
        clock.start_part(1000)
        self.assertLessEqual(clock.left(), 100)
        self.assertEqual(clock.left(most=0), 0.1)

    def test_timeout_becomes_skip_or_failure(self):
        clock = gpu_machine.Clock(1000)
        clock.start_part(1)
        with self.assertRaises(gpu_machine.Skip):
            clock.raise_late('memcheck', 0, 0, time.monotonic(), 'said')
        with self.assertRaises(gpu_machine.Failed) as why:
            clock.raise_late('conformance', 3, 1, time.monotonic(), 'not ok 4')
        self.assertIn('not ok 4', str(why.exception))


class Child(unittest.TestCase):
    def test_keeps_output_lines_by_stream_and_in_order(self):
        child = gpu_machine.Child(['sh', '-c', 'echo one; echo two >&2'], dict(os.environ))
        self.assertEqual(child.process.wait(timeout=60), 0)
        child.finish_reading()
        self.assertEqual(child.out(), 'one')
        self.assertEqual(sorted(child.said().split()), ['one', 'two'])

    def test_ends_a_running_child(self):
        child = gpu_machine.Child(['sleep', '1000'], dict(os.environ))
        child.end()
        self.assertEqual(child.process.returncode, -15)


if __name__ == '__main__':
    unittest.main()
