// OpTable: one function pointer per op. The twins fill it (ref in fp32, exact in fp64 between
// rounding points); a backend starts from its device's implementations of all of them. Contracts:
// the headers.
#pragma once

#include "ops/attention/draft_attention.h"
#include "ops/attention/sparse_attention.h"
#include "ops/cache/embed_gather.h"
#include "ops/cache/kv_store.h"
#include "ops/compress/compress_pool.h"
#include "ops/compress/indexer.h"
#include "ops/engram/engram.h"
#include "ops/hyper_connection/mhc.h"
#include "ops/linear/grouped_o_proj.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe_ffn.h"
#include "ops/moe/router.h"
#include "ops/norm/rms_norm.h"
#include "ops/quant/cast_round.h"
#include "ops/rope/rope.h"
#include "ops/sampling/add_rows.h"
#include "ops/sampling/argmax_rows.h"
#include "ops/sampling/sample_rows.h"
#include "ops/vision/image_rows.h"
#include "ops/vision/linear_bias.h"
#include "ops/vision/vit_attention.h"
#include "ops/vision/vit_rows.h"

namespace deepinfer {

struct OpTable {
    const char* name = "";
    DType acc = DType::kF32;  ///< type of everything the contracts call "accumulator type"

    RmsNormOp rms_norm = nullptr;
    LinearOp linear = nullptr;
    GroupedOProjOp grouped_o_proj = nullptr;
    QuantQ8Op quant_q8 = nullptr;
    QuantQ4mOp quant_q4m = nullptr;
    ScaleBf16Op scale_bf16 = nullptr;
    RopeTableOp rope_table = nullptr;
    RopeOp rope = nullptr;
    MhcMixesOp mhc_mixes = nullptr;
    MhcCollapseOp mhc_collapse = nullptr;
    MhcExpandOp mhc_expand = nullptr;
    StreamsMeanOp streams_mean = nullptr;
    EngramHashOp engram_hash = nullptr;
    EngramLookupOp engram_lookup = nullptr;
    EngramGateOp engram_gate = nullptr;
    EmbedStreamsOp embed_streams = nullptr;
    GatherRowsOp gather_rows = nullptr;
    WindowPackOp window_pack = nullptr;
    WindowStoreOp window_store = nullptr;
    KvEntryStoreOp kv_entry_store = nullptr;
    IndexKeyStoreOp index_key_store = nullptr;
    CompressPoolOp compress_pool = nullptr;
    CompressTailStoreOp compress_tail_store = nullptr;
    IndexScoresOp index_scores = nullptr;
    CandidateBlocksOp candidate_blocks = nullptr;
    TopkSelectOp topk_select = nullptr;
    SparseAttentionOp sparse_attention = nullptr;
    RouterScoresOp router_scores = nullptr;
    RouterTopkOp router_topk = nullptr;
    RouterWeightsOp router_weights = nullptr;
    SwigluOp swiglu = nullptr;
    MoeFfnOp moe_ffn = nullptr;

    // Fusions of the above. A backend may leave them null; the model then calls the parts, and gets
    // the same bits.
    MhcStepOp mhc_step = nullptr;
    RmsNormQ8Op rms_norm_q8 = nullptr;

    /// Token choice on the device. Null: the sampler reads the logits on the host.
    SampleRowsOp sample_rows = nullptr;

    // Drafting alone (model/dspark.h). A backend may leave them null; its model then refuses to
    // draft.
    DraftAttentionOp draft_attention = nullptr;
    AddRowsOp add_rows = nullptr;
    ArgmaxRowsOp argmax_rows = nullptr;
    bool runs_drafts() const { return draft_attention && add_rows && argmax_rows; }

    // Pictures alone (model/vision_encoder.h, image rows of a batch). A backend may leave them
    // null; it then takes no pictures.
    LinearBiasOp linear_bias = nullptr;
    VitRopeOp vit_rope = nullptr;
    VitAttentionOp vit_attention = nullptr;
    VitSwigluOp vit_swiglu = nullptr;
    AddBf16Op add_bf16 = nullptr;
    GeluOp gelu = nullptr;
    PixelUnshuffleOp pixel_unshuffle = nullptr;
    PlaceRowsOp place_rows = nullptr;
    bool runs_pictures() const {
        return linear_bias && vit_rope && vit_attention && vit_swiglu && add_bf16 && gelu &&
               pixel_unshuffle && place_rows;
    }
};

/// All twins with fp32 accumulation ("ref").
OpTable ref_op_table();
/// All twins with fp64 between the rounding points ("exact"): the goldens' arithmetic.
OpTable exact_op_table();

}  // namespace deepinfer
