// Row-wise ops on the device against the twins: norm, quantizers, rotation, hyper-connections,
// Engram, row moves.
#include <cmath>
#include <limits>

#include "gpu/gpu_support.h"

namespace deepinfer::gpu_test {
namespace {

using RowsGpu = GpuTest;

/// Values from tiny to huge, ties, zeros and NaN rows.
HostTensor nasty_bf16(std::mt19937_64& rng, int64_t rows, int64_t n, int64_t pad = 0) {
    HostTensor t = normal_bf16(rng, {rows, n}, 1.0f, pad);
    std::uniform_int_distribution<int> exponent(-20, 12), pick(0, 19);
    for (int64_t r = 0; r < rows; ++r) {
        bf16* p = t.view.row<bf16>(r);
        const float scale = std::ldexp(1.0f, exponent(rng));
        for (int64_t i = 0; i < n; ++i) {
            const int what = pick(rng);
            float v = to_float(p[i]) * scale;
            if (what == 0) v = 0.0f;
            if (what == 1) v = std::ldexp(std::round(v / scale * 4) / 4, exponent(rng));
            p[i] = to_bf16(v);
        }
        if (r % 5 == 4) std::fill(p, p + n, bf16{0});
        if (r % 7 == 6) p[n / 2] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    }
    return t;
}

TEST_F(RowsGpu, RmsNormMatchesTwin) {
    for (int64_t rows : {0, 1, 3, 64}) {
        for (int64_t n : {1, 7, 64, 255, 512, 1280, 5120}) {
            for (int64_t pad : {0, 3, 8}) {
                Case c;
                const Arg x = c.input(nasty_bf16(rng, rows, n, pad)),
                          w = c.input(normal_f32(rng, {n})),
                          out = c.output(DType::kBF16, {rows, n}, pad);
                c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.rms_norm(s, a[x], a[w], 1e-20f, a[out]);
                });
                c.expect_close(out, 1e-3, "rms_norm n " + std::to_string(n));
            }
        }
    }
}

TEST_F(RowsGpu, RmsNormRowIgnoresItsBatch) {
    const HostTensor all = normal_bf16(rng, {256, 5120});
    const HostTensor weight = normal_f32(rng, {5120});
    std::vector<std::vector<uint8_t>> first;
    for (int64_t rows : {256, 1, 2, 3, 7, 8, 16, 33, 64}) {
        Case c;
        HostTensor part = all;
        part.view = all.view.rows(0, rows);
        part.memory.resize(static_cast<size_t>(rows * 5120 * 2));
        const Arg x = c.input(part), w = c.input(weight),
                  out = c.output(DType::kBF16, {rows, 5120});
        c.run_gpu([&](const OpTable& ops, Stream& s, const Args& a) {
            ops.rms_norm(s, a[x], a[w], 1e-6f, a[out]);
        });
        for (int64_t r = 0; r < rows; ++r) {
            if (rows == 256) first.push_back(row_bytes(c.gpu(out), r));
            ASSERT_EQ(row_bytes(c.gpu(out), r), first[static_cast<size_t>(r)]);
        }
    }
}

TEST_F(RowsGpu, QuantizersEqualTwin) {
    for (int64_t rows : {0, 1, 2, 33, 64}) {
        for (int64_t k : {32, 64, 96, 1280, 5120}) {
            for (int64_t pad : {0, 5}) {
                Case c;
                const HostTensor in = nasty_bf16(rng, rows, k, pad);
                const Arg x = c.input(in), q8 = c.output(DType::kBF16, {rows, k}, pad),
                          q4 = c.output(DType::kBF16, {rows, k}), same = c.inout(in);
                c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.quant_q8(s, a[x], a[q8]);
                    ops.quant_q4m(s, a[x], a[q4]);
                    ops.quant_q8(s, a[same], a[same]);
                });
                c.expect_close(q8, 0, "q8");
                c.expect_close(q4, 0, "q4m");
                c.expect_close(same, 0, "q8 in place");
            }
        }
    }
    for (int64_t n : {1, 4, 32}) {
        Case c;
        const Arg x = c.input(normal_bf16(rng, {9, n})), out = c.output(DType::kBF16, {9, n});
        c.run([&](const OpTable& ops, Stream& s, const Args& a) {
            ops.scale_bf16(s, a[x], 0.0883883461f, a[out]);
        });
        c.expect_equal(out, "scale_bf16");
    }
}

TEST_F(RowsGpu, QuantizersEqualTwinOnFiniteRowsToTheBit) {
    // expect_close(0) allows another NaN pattern; finite rows must agree in every bit, signs of
    // zero included.
    Case c;
    const Arg x = c.input(normal_bf16(rng, {64, 512}, 3.0f)),
              q8 = c.output(DType::kBF16, {64, 512}), q4 = c.output(DType::kBF16, {64, 512});
    c.run([&](const OpTable& ops, Stream& s, const Args& a) {
        ops.quant_q8(s, a[x], a[q8]);
        ops.quant_q4m(s, a[x], a[q4]);
    });
    c.expect_equal(q8, "q8");
    c.expect_equal(q4, "q4m");
}

TEST_F(RowsGpu, RotationMatchesTwin) {
    for (int64_t rows : {0, 1, 5, 40}) {
        for (int half : {8, 32}) {
            for (int64_t heads : {1, 3, 64}) {
                const int64_t d = heads == 3 ? 2 * half : 128;
                std::vector<int32_t> pos;
                std::vector<float> f;
                for (int64_t i = 0; i < rows; ++i)
                    pos.push_back(static_cast<int32_t>(i % 3 == 0 ? 1048575 - i * 977 : i * 31));
                Case c;
                HostTensor freqs = make_tensor(DType::kF32, {half});
                for (int i = 0; i < half; ++i)
                    freqs.view.ptr<float>()[i] =
                        std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
                const HostTensor in = normal_bf16(rng, {rows, heads, d});
                const Arg p = c.input(ints(pos, {rows})), fr = c.input(freqs),
                          cs = c.output(DType::kF32, {rows, half, 2}), x = c.inout(in),
                          y = c.inout(in);
                c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.rope_table(s, a[p], a[fr], a[cs]);
                    ops.rope(s, a[x], a[cs], false);
                    ops.rope(s, a[y], a[cs], true);
                });
                c.expect_close(cs, 2e-7, "cos_sin");
                c.expect_close(x, 3e-4, "rope");
                c.expect_close(y, 3e-4, "inverse rope");
            }
        }
    }
}

TEST_F(RowsGpu, HyperConnectionsMatchTwin) {
    for (int64_t rows : {0, 1, 3, 63, 64, 67}) {
        for (int64_t hc : {1, 2, 4}) {
            for (int64_t d : {32, 256, 5120}) {
                if (d == 5120 && rows > 3 && rows != 67) continue;
                const int64_t mixes = (2 + hc) * hc;
                Case c;
                const Arg x = c.input(normal_bf16(rng, {rows, hc, d})),
                          fn = c.input(normal_f32(rng, {mixes, hc * d}, 0.02f)),
                          base = c.input(normal_f32(rng, {mixes})),
                          scale = c.input(normal_f32(rng, {3})),
                          pre = c.output(DType::kF32, {rows, hc}),
                          post = c.output(DType::kF32, {rows, hc}),
                          comb = c.output(DType::kF32, {rows, hc, hc}),
                          u = c.output(DType::kBF16, {rows, d}),
                          y = c.input(normal_bf16(rng, {rows, d}, 1.0f, 4)),
                          next = c.output(DType::kBF16, {rows, hc, d}),
                          mean = c.output(DType::kBF16, {rows, d}, 6);
                c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.mhc_mixes(s,
                                  a[x],
                                  a[fn],
                                  a[base],
                                  a[scale],
                                  20,
                                  1e-6f,
                                  1e-20f,
                                  a[pre],
                                  a[post],
                                  a[comb]);
                    ops.mhc_collapse(s, a[x], a[pre], a[u]);
                    ops.mhc_expand(s, a[y], a[x], a[post], a[comb], a[next]);
                    ops.streams_mean(s, a[x], a[mean]);
                });
                const std::string what = "rows " + std::to_string(rows) + " hc " +
                                         std::to_string(hc) + " d " + std::to_string(d);
                c.expect_close(pre, 1e-5, "pre " + what);
                c.expect_close(post, 1e-5, "post " + what);
                c.expect_close(comb, 1e-5, "comb " + what);
                c.expect_close(u, 1e-3, "collapse " + what);
                c.expect_close(next, 1e-3, "expand " + what);
                c.expect_close(mean, 1e-3, "mean " + what);
            }
        }
    }
}

TEST_F(RowsGpu, FusedSitesGiveTheBitsOfTheirParts) {
    for (int64_t rows : {0, 1, 3, 70}) {
        for (int64_t d : {32, 64, 1280, 5120, 5152}) {
            for (int64_t hc : {4, 2}) {
                Case c;
                const Arg y = c.input(normal_bf16(rng, {rows, d})),
                          x = c.input(normal_bf16(rng, {rows, hc, d}, 2.0f)),
                          post = c.input(normal_f32(rng, {rows, hc})),
                          comb = c.input(normal_f32(rng, {rows, hc, hc})),
                          pre = c.input(normal_f32(rng, {rows, hc})),
                          w = c.input(normal_f32(rng, {d})),
                          out = c.output(DType::kBF16, {rows, hc, d}),
                          u = c.output(DType::kBF16, {rows, d}, 3),
                          uq = c.output(DType::kBF16, {rows, d}, 8),
                          alone = c.output(DType::kBF16, {rows, d}),
                          normq = c.output(DType::kBF16, {rows, d}),
                          norm = c.output(DType::kBF16, {rows, d});
                const auto parts = [&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.mhc_expand(s, a[y], a[x], a[post], a[comb], a[out]);
                    ops.mhc_collapse(s, a[out], a[pre], a[u]);
                    ops.rms_norm(s, a[u], a[w], 1e-20f, a[u]);
                    ops.quant_q8(s, a[u], a[uq]);
                    ops.quant_q8(s, a[u], a[alone]);
                    ops.rms_norm(s, a[y], a[w], 1e-6f, a[norm]);
                    ops.quant_q8(s, a[norm], a[normq]);
                };
                std::vector<HostTensor> want;
                for (int fused = 0; fused < 2; ++fused) {
                    c.run_gpu([&](const OpTable& ops, Stream& s, const Args& a) {
                        if (fused == 0) return parts(ops, s, a);
                        const Tensor none;
                        ops.mhc_step(s,
                                     a[y],
                                     a[x],
                                     a[post],
                                     a[comb],
                                     a[pre],
                                     a[w],
                                     1e-20f,
                                     a[out],
                                     a[alone],
                                     none);
                        ops.mhc_step(s,
                                     a[y],
                                     a[x],
                                     a[post],
                                     a[comb],
                                     a[pre],
                                     a[w],
                                     1e-20f,
                                     a[out],
                                     a[u],
                                     a[uq]);
                        ops.quant_q8(s, a[alone], a[alone]);
                        ops.rms_norm_q8(s, a[y], a[w], 1e-6f, a[norm], a[normq]);
                    });
                    const Arg all[] = {out, u, uq, alone, normq, norm};
                    for (size_t i = 0; i < 6; ++i) {
                        for (int64_t r = 0; r < rows; ++r) {
                            if (fused == 0) {
                                want.push_back(c.gpu(all[i]));
                                break;
                            }
                            ASSERT_EQ(row_bytes(c.gpu(all[i]), r), row_bytes(want[i], r))
                                << "output " << i << " row " << r << " d " << d << " hc " << hc;
                        }
                    }
                }
                c.run(parts, [&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.mhc_step(
                        s, a[y], a[x], a[post], a[comb], a[pre], a[w], 1e-20f, a[out], a[u], a[uq]);
                    ops.quant_q8(s, a[u], a[alone]);
                    ops.rms_norm_q8(s, a[y], a[w], 1e-6f, a[norm], a[normq]);
                });
                c.expect_close(out, 1e-3, "streams");
                c.expect_close(u, 2e-3, "u");
                c.expect_close(norm, 1e-3, "norm");
            }
        }
    }
}

TEST_F(RowsGpu, HyperConnectionRowIgnoresItsBatch) {
    const HostTensor all = normal_bf16(rng, {128, 4, 1280}),
                     fn = normal_f32(rng, {24, 5120}, 0.02f), base = normal_f32(rng, {24}),
                     scale = normal_f32(rng, {3});
    std::vector<std::vector<uint8_t>> first;
    for (int64_t rows : {128, 1, 3, 63, 64, 65}) {
        Case c;
        HostTensor part = all;
        part.view = all.view.rows(0, rows);
        part.memory.resize(static_cast<size_t>(rows * 5120 * 2));
        const Arg x = c.input(part), f = c.input(fn), b = c.input(base), sc = c.input(scale),
                  pre = c.output(DType::kF32, {rows, 4}), post = c.output(DType::kF32, {rows, 4}),
                  comb = c.output(DType::kF32, {rows, 4, 4});
        c.run_gpu([&](const OpTable& ops, Stream& s, const Args& a) {
            ops.mhc_mixes(s, a[x], a[f], a[b], a[sc], 20, 1e-6f, 1e-20f, a[pre], a[post], a[comb]);
        });
        for (int64_t r = 0; r < rows; ++r) {
            std::vector<uint8_t> bytes = row_bytes(c.gpu(comb), r);
            const std::vector<uint8_t> more = row_bytes(c.gpu(pre), r);
            bytes.insert(bytes.end(), more.begin(), more.end());
            if (rows == 128) first.push_back(bytes);
            ASSERT_EQ(bytes, first[static_cast<size_t>(r)]) << "row " << r << " of " << rows;
        }
    }
}

TEST_F(RowsGpu, EngramMatchesTwin) {
    for (int64_t rows : {0, 1, 9, 40}) {
        const int64_t max_ngram = 4, heads = 2, cols = 6, ed = 64, hc = 4, d = 320,
                      table_rows = 3000;
        std::uniform_int_distribution<int32_t> id(0, 99091);
        std::vector<int32_t> ngrams;
        std::vector<uint8_t> dead;
        for (int64_t i = 0; i < rows * max_ngram; ++i) ngrams.push_back(id(rng));
        for (int64_t i = 0; i < rows; ++i) dead.push_back(i % 4 == 3);
        HostWeight table;
        table.view = {DType::kFP8E4M3, table_rows, ed};
        for (int64_t i = 0; i < table_rows * ed; ++i)
            table.codes.push_back(static_cast<uint8_t>((i * 7 + i / 64) % 127));
        for (int64_t i = 0; i < table_rows * ed / 32; ++i)
            table.scales.push_back(static_cast<uint8_t>(110 + i % 20));
        Case c;
        const Arg n = c.input(ints(ngrams, {rows, max_ngram})),
                  mult = c.input(
                      longs({76632096046245, 4839876093313, 35959672319349, 73987337458391}, {4})),
                  primes = c.input(longs({503, 509, 521, 523, 541, 547}, {cols})),
                  offsets = c.input(longs({0, 503, 1012, 1533, 2056, 2400}, {cols})),
                  primes32 = c.input(ints({503, 509, 521, 523, 541, 547}, {cols})),
                  ids = c.output(DType::kI32, {rows, cols}),
                  ids32 = c.output(DType::kI32, {rows, cols}),
                  codes = c.input(bytes_of(table.codes, {table_rows, ed})),
                  scales = c.input(bytes_of(table.scales, {table_rows, ed / 32})),
                  e = c.output(DType::kBF16, {rows, cols * ed}, 8);
        c.run([&](const OpTable& ops, Stream& s, const Args& a) {
            ops.engram_hash(s, a[n], a[mult], a[primes], a[offsets], a[ids]);
            ops.engram_hash(s, a[n], a[mult], a[primes32], a[offsets], a[ids32]);
            WeightMatrix t{DType::kFP8E4M3, table_rows, ed};
            t.weight = a[codes].data;
            t.scale = a[scales].ptr<uint8_t>();
            ops.engram_lookup(s, t, a[ids], a[e]);
        });
        c.expect_equal(ids, "hash");
        c.expect_equal(ids32, "hash, i32 primes");
        c.expect_equal(e, "lookup");
        for (bool with_dead : {false, true}) {
            Case g;
            const Arg x = g.inout(normal_bf16(rng, {rows, hc, d})),
                      kv = g.input(normal_bf16(rng, {rows, (hc + 1) * d}, 1.0f, 2)),
                      qw = g.input(normal_f32(rng, {hc, d})),
                      kw = g.input(normal_f32(rng, {hc, d})),
                      mask = with_dead ? g.input(bytes_of(dead, {rows})) : g.none();
            g.run([&](const OpTable& ops, Stream& s, const Args& a) {
                ops.engram_gate(s, a[x], a[kv], a[qw], a[kw], a[mask], 1e-20f);
            });
            g.expect_close(x, 1e-3, "gate");
        }
        (void)heads;
    }
}

TEST_F(RowsGpu, RowMovesEqualTwin) {
    for (int64_t rows : {0, 1, 13}) {
        for (DType t : {DType::kBF16, DType::kF32}) {
            std::vector<int32_t> ids;
            for (int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<int32_t>(i * 37 % 50));
            HostTensor embed =
                t == DType::kBF16 ? normal_bf16(rng, {50, 96}) : normal_f32(rng, {50, 96});
            Case c;
            const Arg e = c.input(embed), id = c.input(ints(ids, {rows})),
                      out = c.output(DType::kBF16, {rows, 4, 96}), picked = c.output(t, {rows, 96}),
                      odd_src = c.input(bytes_of(std::vector<uint8_t>(50 * 17, 3), {50, 17})),
                      odd = c.output(DType::kU8, {rows, 17});
            c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                WeightMatrix w{t, 50, 96};
                w.weight = a[e].data;
                ops.embed_streams(s, w, a[id], a[out]);
                ops.gather_rows(s, a[e], a[id], a[picked]);
                ops.gather_rows(s, a[odd_src], a[id], a[odd]);
            });
            c.expect_equal(out, "embed_streams");
            c.expect_equal(picked, "gather_rows");
            c.expect_equal(odd, "gather_rows of odd bytes");
        }
    }
}

}  // namespace
}  // namespace deepinfer::gpu_test
