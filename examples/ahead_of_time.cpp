// SPDX-License-Identifier: Apache-2.0
// Launches the kernel that ahead_of_time.py compiled, with the CUDA driver alone.
//
//     python ahead_of_time.py && g++ ahead_of_time.cpp -lcuda -o ahead_of_time && ./ahead_of_time out/gemm_tile.fatbin
//
// The compiler has to find cuda.h (-I), and the linker libcuda.so (-L), which comes with the driver.
#include <cuda.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

constexpr int64_t N = 32;

// A two-dimensional array as the launch record has it: "ptr", "ptr", "i64", "i64", "ptr" and four times "i64".
struct Matrix {
    CUdeviceptr meminfo = 0, parent = 0;  // what Numba keeps on its own arrays; null at a launch
    int64_t elements = N * N, itemsize = sizeof(double);
    CUdeviceptr data = 0;
    int64_t shape[2] = {N, N};
    int64_t strides[2] = {N * int64_t{sizeof(double)}, sizeof(double)};  // in bytes

    void append(std::vector<void *> &parameters) {
        void *words[] = {&meminfo,  &parent,   &elements,   &itemsize,  &data,
                         &shape[0], &shape[1], &strides[0], &strides[1]};
        parameters.insert(parameters.end(), std::begin(words), std::end(words));
    }
};

void check(CUresult status, const char *what) {
    if (status == CUDA_SUCCESS) return;
    const char *text = nullptr;
    cuGetErrorString(status, &text);
    std::fprintf(stderr, "%s: %s\n", what, text ? text : "unknown error");
    std::exit(1);
}

int main(int argc, char **argv) {
    std::ifstream file(argc > 1 ? argv[1] : "out/gemm_tile.fatbin", std::ios::binary);
    std::vector<char> code{std::istreambuf_iterator<char>(file), {}};
    if (code.empty()) {
        std::fprintf(stderr, "no code: run ahead_of_time.py first and give me its gemm_tile.fatbin\n");
        return 1;
    }

    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module, code.data()), "cuModuleLoadData");
    check(cuModuleGetFunction(&kernel, module, "gemm_tile"), "cuModuleGetFunction");

    std::vector<double> host[3];  // A, B, C
    Matrix matrices[3];
    std::vector<void *> parameters;
    for (int m = 0; m < 3; ++m) {
        host[m].resize(N * N);
        for (int64_t i = 0; i < N * N; ++i) host[m][i] = m < 2 ? std::sin(double(i + 100 * m)) : NAN;
        check(cuMemAlloc(&matrices[m].data, N * N * sizeof(double)), "cuMemAlloc");
        check(cuMemcpyHtoD(matrices[m].data, host[m].data(), N * N * sizeof(double)), "cuMemcpyHtoD");
        matrices[m].append(parameters);
    }
    // The block of 128 threads is the record's; the kernel's shared memory is static, so the launch adds none.
    check(cuLaunchKernel(kernel, 1, 1, 1, 128, 1, 1, 0, nullptr, parameters.data(), nullptr), "cuLaunchKernel");
    check(cuMemcpyDtoH(host[2].data(), matrices[2].data, N * N * sizeof(double)), "cuMemcpyDtoH");

    double difference = 0, norm = 0;
    for (int64_t i = 0; i < N; ++i)
        for (int64_t j = 0; j < N; ++j) {
            double expected = 0;
            for (int64_t k = 0; k < N; ++k) expected += host[0][i * N + k] * host[1][k * N + j];
            difference += std::pow(host[2][i * N + j] - expected, 2);
            norm += expected * expected;
        }
    double error = std::sqrt(difference / norm);
    std::printf("error: %.1e (at most 1e-14)\n", error);
    return error <= 1e-14 ? 0 : 1;
}
