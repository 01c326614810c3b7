/* SPDX-License-Identifier: Apache-2.0 */
#include "common/float_state.h"

_Thread_local struct cdi_float_thread cdi_float_thread;
