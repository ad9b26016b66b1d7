#include "ops/cache/embed_gather.h"

#include <cstring>

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

OpCase embed_case(DType format, int64_t hc, int64_t d) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        SeededRandom random("embedding");
        const HostWeight embed = HostWeight::random(random, format, 101, d);
        HostTensor tokens(DType::kI32, {static_cast<int64_t>(ids.size())}),
            out(DType::kBF16, {tokens.dim(0), hc, d});
        for (size_t r = 0; r < ids.size(); ++r)
            tokens.set(static_cast<int64_t>(r), (ids[r] * 37 + 100) % 101);
        bench.ops().embed_streams(
            bench.stream(), bench.put(embed), bench.put(tokens), bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {std::string("embed_") + (format == DType::kF32 ? "f32" : "bf16") + "_hc" +
                std::to_string(hc) + "_d" + std::to_string(d),
            {Tolerance::equal()},
            run,
            false};
}

OpCase gather_case(DType dtype, std::vector<int64_t> row_dims, int64_t pad) {
    const std::string name = std::string("gather_") + dtype_name(dtype) + "_" +
                             std::to_string(row_dims.size()) + "d_pad" + std::to_string(pad);
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        std::vector<int64_t> dims = row_dims;
        dims.insert(dims.begin(), 70);
        HostTensor src(dtype, dims, pad), picks(DType::kI32, {static_cast<int64_t>(ids.size())});
        SeededRandom random("gather");
        for (int64_t i = 0; i < src.numel(); ++i)
            src.set(i, static_cast<double>(random.below(200)));
        for (size_t r = 0; r < ids.size(); ++r)
            picks.set(static_cast<int64_t>(r), (ids[r] * 11 + 69) % 70);
        dims[0] = picks.dim(0);
        HostTensor out(dtype, dims);
        bench.ops().gather_rows(bench.stream(), bench.put(src), bench.put(picks), bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {name, {Tolerance::equal()}, run, false};
}

DI_TWIN_LAWS(EmbedGather,
             embed_case(DType::kBF16, 4, 64),
             embed_case(DType::kF32, 4, 33),
             embed_case(DType::kBF16, 1, 1),
             gather_case(DType::kBF16, {64}, 8),
             gather_case(DType::kF32, {4}, 0),
             gather_case(DType::kI32, {}, 0),
             gather_case(DType::kBF16, {4, 32}, 0),
             gather_case(DType::kU8, {33}, 3),
             gather_case(DType::kF64, {2, 2}, 1));

TEST(EmbedStreams, RoundsF32EmbeddingsToNearestEven) {
    OpBench bench({"ref", ""});
    HostWeight embed;
    embed.dtype = DType::kF32;
    embed.n = 1;
    embed.k = 2;
    const float values[2] = {1.0f + 0x1p-8f, 1.0f + 0x1p-8f + 0x1p-20f};  // a tie and just above it
    embed.weight.resize(8);
    std::memcpy(embed.weight.data(), values, 8);
    HostTensor token = HostTensor::from(DType::kI32, {1}, {0}), out(DType::kBF16, {1, 2, 2});
    bench.ops().embed_streams(bench.stream(), bench.put(embed), bench.put(token), bench.put(out));
    bench.finish();
    EXPECT_EQ(difference(
                  out,
                  HostTensor::from(DType::kBF16, {1, 2, 2}, {1.0, 1.0 + 0x1p-7, 1.0, 1.0 + 0x1p-7}),
                  Tolerance::equal()),
              "");
}

}  // namespace
}  // namespace deepinfer::testing
