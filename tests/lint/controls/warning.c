/* SPDX-License-Identifier: Apache-2.0 */
/* Must not compile in a build with --werror: werror.py defines FAULT. */
int narrow(long wide);

int narrow(long wide)
{
#ifdef FAULT
    int same = wide;
    return same;
#else
    return (int)wide;
#endif
}
