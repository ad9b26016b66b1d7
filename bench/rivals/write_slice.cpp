// Writes a generated geometry as a checkpoint on disk, for engines that cannot make it themselves:
//   write_slice GEOMETRY OUT_DIR
// The values are those of --synthetic GEOMETRY. Drafting tensors (mtp.*) are left out.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/synthetic.h"

using namespace deepinfer;

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: write_slice GEOMETRY OUT_DIR\n");
        return 2;
    }
    const auto model = parse_synthetic(argv[1]);
    if (!model.ok()) {
        std::fprintf(stderr, "%s\n", model.status().message().c_str());
        return 1;
    }
    const std::string out = argv[2], file = "model-00001-of-00001.safetensors";
    std::vector<ExpectedTensor> tensors;
    for (ExpectedTensor& t : expected_tensors(model->config)) {
        if (t.name.rfind("mtp.", 0) != 0) tensors.push_back(std::move(t));
    }
    nlohmann::ordered_json header, map;
    int64_t at = 0;
    for (const ExpectedTensor& t : tensors) {
        header[t.name] = {{"dtype", synthetic_dtype(t)},
                          {"shape", t.shape},
                          {"data_offsets", {at, at + synthetic_bytes(t)}}};
        map[t.name] = file;
        at += synthetic_bytes(t);
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::ofstream f(out + "/" + file, std::ios::binary);
    const uint64_t length = text.size();
    f.write(reinterpret_cast<const char*>(&length), 8);
    f << text;
    std::vector<uint8_t> part;
    for (const ExpectedTensor& t : tensors) {
        int64_t elements = 1;
        for (const int64_t d : t.shape) elements *= d;
        const int64_t width = synthetic_bytes(t) / elements;
        constexpr int64_t kPart = int64_t{1} << 20;
        for (int64_t begin = 0; begin < elements; begin += kPart) {
            const int64_t end = std::min(elements, begin + kPart);
            part.resize(static_cast<size_t>((end - begin) * width));
            fill_synthetic(t, model->seed, model->config.hc_mult, begin, end, part.data());
            f.write(reinterpret_cast<const char*>(part.data()),
                    static_cast<std::streamsize>(part.size()));
        }
    }
    std::ofstream(out + "/model.safetensors.index.json")
        << nlohmann::ordered_json{{"metadata", {{"total_size", at}}}, {"weight_map", map}}.dump();
    std::ofstream(out + "/config.json") << synthetic_config_json(model->name);
    return f.good() ? 0 : 1;
}
