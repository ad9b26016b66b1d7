// The judge's door as a self-contained program for a bare GPU host: runs given token ids on any
// linked backend and writes every named intermediate (see deepinfer/judge.h).
//
//   gpu_forward BACKEND MODEL_DIR INPUT OUTPUT [--chunk N] [--force FILE]... [--image FILE]...
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backends/cuda/cuda_backend.h"
#include "backends/ref/ref_backend.h"
#include "deepinfer/judge.h"

int main(int argc, char** argv) {
    if (argc < 5) {
        std::fprintf(
            stderr,
            "usage: gpu_forward BACKEND MODEL_DIR INPUT OUTPUT [--chunk N] [--force FILE]... "
            "[--image FILE]...\n");
        return 2;
    }
    deepinfer::register_ref_backends();
    deepinfer::register_cuda_backend();
    deepinfer::ForwardOptions o;
    o.backend = argv[1];
    o.model_dir = argv[2];
    o.input = argv[3];
    o.output = argv[4];
    for (int i = 5; i + 1 < argc; i += 2) {
        const std::string key = argv[i];
        if (key == "--chunk") {
            o.chunk = std::atoll(argv[i + 1]);
        } else if (key == "--force") {
            o.force.push_back(argv[i + 1]);
        } else if (key == "--image") {
            o.images.push_back(argv[i + 1]);
        } else {
            std::fprintf(stderr, "gpu_forward: unknown option %s\n", key.c_str());
            return 2;
        }
    }
    const deepinfer::Result<std::string> r = deepinfer::run_forward(o);
    if (!r.ok()) {
        std::fprintf(stderr, "gpu_forward: %s\n", r.status().to_string().c_str());
        return 1;
    }
    std::printf("%s\n", r->c_str());
    return 0;
}
