#include "engine/cache_copier.h"

#include <cstring>

namespace deepinfer {

void CacheCopier::copy_rows(const Tensor& t, int64_t from, int64_t to, int64_t rows) {
    if (!t) return;
    const Tensor source = t.rows(from * rows, (from + 1) * rows);
    const Tensor target = t.rows(to * rows, (to + 1) * rows);
    const size_t bytes = static_cast<size_t>(source.bytes());
    if (device_.host_accessible()) {
        std::memcpy(target.data, source.data, bytes);
        return;
    }
    if (bounce_.size() < bytes) bounce_.resize(bytes);
    Stream& stream = device_.stream();
    device_.copy_to_host(stream, bounce_.data(), source.data, bytes);
    stream.synchronize();
    device_.copy_to_device(stream, target.data, bounce_.data(), bytes);
    stream.synchronize();
}

void CacheCopier::copy_slot(int32_t from, int32_t to) {
    for (const CacheView::Layer& layer : view_.layers) {
        copy_rows(layer.window_ring, from, to, 1);
        copy_rows(layer.tail, from, to, 1);
    }
}

void CacheCopier::copy_block(int32_t from, int32_t to) {
    for (const CacheView::Layer& layer : view_.layers) {
        copy_rows(layer.kv_pool, from, to, layer.entries_per_block);
        copy_rows(layer.key_pool, from, to, layer.entries_per_block);
    }
}

}  // namespace deepinfer
