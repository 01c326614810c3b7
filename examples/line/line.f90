! SPDX-License-Identifier: Apache-2.0
! libcddp from Fortran, by iso_c_binding and nothing else: the same job as together.c.
module cddp
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    implicit none
    integer(c_int), parameter :: CDDP_OK = 0, CDDP_FLOAT32 = 8

    type, bind(c) :: cddp_param ! as in cddp.h, member by member
        integer(c_size_t) :: size = 0
        type(c_ptr) :: name = c_null_ptr, data = c_null_ptr
        integer(c_size_t) :: count = 0
        integer(c_int) :: dtype = 0, grad_dtype = 0
        type(c_ptr) :: grad = c_null_ptr, shape = c_null_ptr
        integer(c_size_t) :: n_dims = 0
        integer(c_int32_t) :: flags = 0, zero = 0
    end type

    interface
        integer(c_int) function cddp_init(comm, opt) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), intent(out) :: comm
            type(c_ptr), value :: opt
        end function
        integer(c_int) function cddp_finalize(comm) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
        end function
        integer(c_int) function cddp_rank(comm) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
        end function
        integer(c_int) function cddp_world_size(comm) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
        end function
        integer(c_int) function cddp_ddp_create(ddp, comm, params, n_params, opt) bind(c)
            import :: c_int, c_ptr, c_size_t, cddp_param
            type(c_ptr), intent(out) :: ddp
            type(c_ptr), value :: comm, opt
            type(cddp_param), intent(in) :: params(*)
            integer(c_size_t), value :: n_params
        end function
        type(c_ptr) function cddp_ddp_grad(ddp, i) bind(c)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: ddp
            integer(c_size_t), value :: i
        end function
        integer(c_int) function cddp_ddp_grad_ready(ddp, i) bind(c)
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: ddp
            integer(c_size_t), value :: i
        end function
        integer(c_int) function cddp_ddp_wait(ddp) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: ddp
        end function
        subroutine cddp_ddp_destroy(ddp) bind(c)
            import :: c_ptr
            type(c_ptr), value :: ddp
        end subroutine
        type(c_ptr) function cddp_last_error() bind(c)
            import :: c_ptr
        end function
    end interface
contains
    subroutine check(status)
        integer(c_int), intent(in) :: status
        character(kind=c_char), pointer :: text(:)
        integer :: n
        if (status == CDDP_OK) return
        call c_f_pointer(cddp_last_error(), text, [4096])
        n = 1
        do while (text(n) /= c_null_char)
            n = n + 1
        end do
        write (error_unit, '(*(a))') text(1:n - 1)
        stop 1, quiet=.true.
    end subroutine
end module

program line
    use cddp
    implicit none
    integer, parameter :: n_points = 4096, n_dims = 8
    real(c_float), target :: w(n_dims) = 0
    real(c_float), pointer :: grad(:)
    real(c_float) :: x(n_dims, n_points), y(n_points)
    character(kind=c_char), target :: name(2) = ['w', c_null_char]
    type(cddp_param) :: param(1)
    type(c_ptr) :: comm, ddp
    integer :: i, d, step, rank, n
    integer, allocatable :: seed(:)

    call random_seed(size=n)
    allocate (seed(n), source=1)
    call random_seed(put=seed) ! the same points on every rank
    call random_number(x)
    x = x - 0.5
    y = matmul([(real(d), d=1, n_dims)], x)

    param(1)%size = c_sizeof(param(1))
    param(1)%name = c_loc(name)
    param(1)%data = c_loc(w)
    param(1)%count = n_dims
    param(1)%dtype = CDDP_FLOAT32
    call check(cddp_init(comm, c_null_ptr))
    call check(cddp_ddp_create(ddp, comm, param, 1_c_size_t, c_null_ptr))
    call c_f_pointer(cddp_ddp_grad(ddp, 0_c_size_t), grad, [n_dims])
    rank = cddp_rank(comm)
    n = cddp_world_size(comm)
    do step = 1, 500
        grad = 0
        do i = rank + 1, n_points, n
            grad = grad + (dot_product(w, x(:, i)) - y(i)) * x(:, i) * n / n_points
        end do
        call check(cddp_ddp_grad_ready(ddp, 0_c_size_t))
        call check(cddp_ddp_wait(ddp))
        w = w - 2 * grad
    end do
    if (rank == 0) print '("w[", i0, "] = ", f4.2)', (d - 1, w(d), d=1, n_dims)
    call cddp_ddp_destroy(ddp)
    call check(cddp_finalize(comm))
end program
