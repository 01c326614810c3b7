// SPDX-License-Identifier: Apache-2.0
// libcddp from C++: the same job as together.c, with the handles owned by std::unique_ptr.
#include <algorithm>
#include <array>
#include <cddp/cddp.h>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace
{
constexpr int n_points = 4096, n_dims = 8;

void check(cddp_status status)
{
    if (status != CDDP_OK)
        throw std::runtime_error(cddp_last_error());
}

struct comm_deleter {
    void operator()(cddp_comm *comm) const noexcept
    {
        (void)cddp_finalize(comm);
    }
};

struct ddp_deleter {
    void operator()(cddp_ddp *ddp) const noexcept
    {
        cddp_ddp_destroy(ddp);
    }
};

using comm_ptr = std::unique_ptr<cddp_comm, comm_deleter>;
using ddp_ptr = std::unique_ptr<cddp_ddp, ddp_deleter>;

comm_ptr join()
{
    cddp_comm *comm = nullptr;
    check(cddp_init(&comm, nullptr));
    return comm_ptr(comm);
}

ddp_ptr reduce(cddp_comm *comm, const std::vector<cddp_param> &params)
{
    cddp_ddp *ddp = nullptr;
    check(cddp_ddp_create(&ddp, comm, params.data(), params.size(), nullptr));
    return ddp_ptr(ddp);
}

void train()
{
    std::array<float, n_dims> w{};
    std::vector<std::array<float, n_dims>> x(n_points);
    std::vector<float> y(n_points);
    std::mt19937 rng(1);
    for (int i = 0; i < n_points; i++)
        for (int d = 0; d < n_dims; d++) {
            x[i][d] = static_cast<float>(rng()) / 4294967296.0f - 0.5f;
            y[i] += static_cast<float>(d + 1) * x[i][d];
        }

    cddp_param p = CDDP_INIT(cddp_param);
    p.name = "w";
    p.data = w.data();
    p.count = w.size();
    p.dtype = CDDP_FLOAT32;
    const comm_ptr comm = join();
    const ddp_ptr ddp = reduce(comm.get(), {p});
    auto *grad = static_cast<float *>(cddp_ddp_grad(ddp.get(), 0));
    const int n = cddp_world_size(comm.get());
    for (int step = 0; step < 500; step++) {
        std::fill_n(grad, n_dims, 0.0f);
        for (int i = cddp_rank(comm.get()); i < n_points; i += n) {
            float err = -y[i];
            for (int d = 0; d < n_dims; d++)
                err += w[d] * x[i][d];
            for (int d = 0; d < n_dims; d++)
                grad[d] += err * x[i][d] * static_cast<float>(n) / n_points;
        }
        check(cddp_ddp_grad_ready(ddp.get(), 0));
        check(cddp_ddp_wait(ddp.get()));
        for (int d = 0; d < n_dims; d++)
            w[d] -= 2.0f * grad[d];
    }
    if (cddp_rank(comm.get()) == 0)
        for (int d = 0; d < n_dims; d++)
            std::printf("w[%d] = %.2f\n", d, static_cast<double>(w[d]));
}
} // namespace

int main()
{
    try {
        train();
        return 0;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
