// SPDX-License-Identifier: Apache-2.0
// libcddp from Rust, by extern "C" and nothing else: the same job as together.c. Handles are left by Drop.
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::{process, ptr, slice};

const FLOAT32: c_int = 8;
const N_POINTS: usize = 4096;
const N_DIMS: usize = 8;

/// cddp_param of cddp.h, member by member.
#[repr(C)]
struct Param {
    size: usize,
    name: *const c_char,
    data: *mut c_void,
    count: usize,
    dtype: c_int,
    grad_dtype: c_int,
    grad: *mut c_void,
    shape: *const usize,
    n_dims: usize,
    flags: u32,
    zero: u32,
}

#[link(name = "cddp")]
extern "C" {
    fn cddp_init(comm: *mut *mut c_void, opt: *const c_void) -> c_int;
    fn cddp_finalize(comm: *mut c_void) -> c_int;
    fn cddp_rank(comm: *const c_void) -> c_int;
    fn cddp_world_size(comm: *const c_void) -> c_int;
    fn cddp_ddp_create(ddp: *mut *mut c_void, comm: *mut c_void, params: *const Param, n: usize, opt: *const c_void) -> c_int;
    fn cddp_ddp_grad(ddp: *mut c_void, i: usize) -> *mut c_void;
    fn cddp_ddp_grad_ready(ddp: *mut c_void, i: usize) -> c_int;
    fn cddp_ddp_wait(ddp: *mut c_void) -> c_int;
    fn cddp_ddp_destroy(ddp: *mut c_void);
    fn cddp_last_error() -> *const c_char;
}

fn check(status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(cddp_last_error()) }.to_string_lossy().into_owned()),
    }
}

struct Comm(*mut c_void);

impl Comm {
    fn join() -> Result<Comm, String> {
        let mut comm = ptr::null_mut();
        check(unsafe { cddp_init(&mut comm, ptr::null()) })?;
        Ok(Comm(comm))
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        unsafe { cddp_finalize(self.0) };
    }
}

struct Ddp(*mut c_void);

impl Ddp {
    fn create(comm: &Comm, params: &[Param]) -> Result<Ddp, String> {
        let mut ddp = ptr::null_mut();
        check(unsafe { cddp_ddp_create(&mut ddp, comm.0, params.as_ptr(), params.len(), ptr::null()) })?;
        Ok(Ddp(ddp))
    }
}

impl Drop for Ddp {
    fn drop(&mut self) {
        unsafe { cddp_ddp_destroy(self.0) };
    }
}

/// Numbers in [-0.5, 0.5), the same on every rank (xorshift64*).
fn random(state: &mut u64) -> f32 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1u32 << 24) as f32 - 0.5
}

fn train() -> Result<(), String> {
    let mut state = 1;
    let x: Vec<[f32; N_DIMS]> = (0..N_POINTS).map(|_| [(); N_DIMS].map(|_| random(&mut state))).collect();
    let y: Vec<f32> = x.iter().map(|row| row.iter().enumerate().map(|(d, v)| (d + 1) as f32 * v).sum()).collect();
    let mut w = [0f32; N_DIMS];
    let comm = Comm::join()?;
    let param = Param {
        size: std::mem::size_of::<Param>(),
        name: b"w\0".as_ptr().cast(),
        data: w.as_mut_ptr().cast(),
        count: N_DIMS,
        dtype: FLOAT32,
        grad_dtype: 0,
        grad: ptr::null_mut(),
        shape: ptr::null(),
        n_dims: 0,
        flags: 0,
        zero: 0,
    };
    let ddp = Ddp::create(&comm, &[param])?;
    let (rank, n) = unsafe { (cddp_rank(comm.0) as usize, cddp_world_size(comm.0) as usize) };
    for _ in 0..500 {
        // The library has it again from grad_ready to wait: no reference to it lives then.
        let grad = unsafe { slice::from_raw_parts_mut(cddp_ddp_grad(ddp.0, 0).cast::<f32>(), N_DIMS) };
        grad.fill(0.0);
        for i in (rank..N_POINTS).step_by(n) {
            let err = w.iter().zip(&x[i]).map(|(a, b)| a * b).sum::<f32>() - y[i];
            for (g, v) in grad.iter_mut().zip(&x[i]) {
                *g += err * v * n as f32 / N_POINTS as f32;
            }
        }
        check(unsafe { cddp_ddp_grad_ready(ddp.0, 0) })?;
        check(unsafe { cddp_ddp_wait(ddp.0) })?;
        let grad = unsafe { slice::from_raw_parts(cddp_ddp_grad(ddp.0, 0).cast::<f32>(), N_DIMS) };
        for (v, g) in w.iter_mut().zip(grad) {
            *v -= 2.0 * g;
        }
    }
    if rank == 0 {
        for (d, v) in w.iter().enumerate() {
            println!("w[{d}] = {v:.2}");
        }
    }
    Ok(())
}

fn main() {
    if let Err(text) = train() {
        eprintln!("{text}");
        process::exit(1);
    }
}
