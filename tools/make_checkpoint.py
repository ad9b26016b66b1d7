#!/usr/bin/env python3
"""Writes a small random checkpoint in the on-disk format of DeepSeek-V4.1-Flash.

    make_checkpoint.py nano    OUT_DIR --tokenizer tokenizer.json [--sha256 LIST]
    make_checkpoint.py nano512 OUT_DIR --tokenizer tokenizer.json
    make_checkpoint.py --config my_config.json --seed 5 OUT_DIR --tokenizer tokenizer.json

Needs numpy alone. The same seed, geometry and tokenizer give the same bytes on every machine and numpy
version; --sha256 checks them against a list in the form of sha256sum. Names, shapes and dtypes are those
of the released files: FP8 e4m3 with one e8m0 scale per 32x32 tile for the dense linears, packed FP4 with
one e8m0 scale per row and 32 columns for the routed experts, FP8 rows for the Engram tables.

The weights are random but not arbitrary. Norm means and projection gains follow the statistics of the
released weights where those are known; where a random draw would leave a mechanism invisible (a softmax
gate that is always flat, a clamp that never bites, a bias that never changes a choice) the gain is raised
until the mechanism shows. Each such choice is commented at its place.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import unicodedata
from pathlib import Path

import numpy as np

# --------------------------------------------------------------------------------------------- geometry

_COMMON_TEXT = dict(
    model_type="deepseek_v41_text", vocab_size=2048, num_key_value_heads=1, n_shared_experts=1,
    scoring_func="sqrtsoftplus", topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=1.5,
    swiglu_limit=10.0, hidden_act="silu", rms_norm_eps=1e-20, attention_bias=False,
    max_position_embeddings=4096, rope_theta=10000, compress_rope_theta=160000,
    rope_scaling=dict(rope_type="yarn", factor=16, beta_fast=32, beta_slow=1,
                      original_max_position_embeddings=256),
    hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6,
    engram_max_ngram_size=4, engram_vocab_size=500, engram_n_heads=2, engram_pad_token_id=2,
    engram_num_embeddings=[3144, 3424],
    num_nextn_predict_layers=3, dspark_block_size=5, dspark_noise_token_id=2047,
    dspark_n_routed_experts=8, dspark_num_experts_per_tok=2,
)
_VISION = dict(
    model_type="deepseek_v41_vision", num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
    intermediate_size=128, patch_size=14, rope_theta=10000, downsample_ratio=3, max_image_tokens=16,
    min_pixels=7056, max_wh_ratio=None,
)
_NANO = dict(
    _COMMON_TEXT, hidden_size=256, num_hidden_layers=12, num_attention_heads=8, head_dim=64,
    qk_rope_head_dim=16, q_lora_rank=128, o_groups=2, o_lora_rank=64, moe_intermediate_size=64,
    n_routed_experts=12, num_experts_per_tok=3, sliding_window=16,
    compress_ratios=[0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    kv_source_layer_ids=[2, 4, 6], index_source_layer_ids=[2, 4, 6, 8, 10], candidate_source_layer_id=6,
    candidate_topk_blocks=8, candidate_block_size=4, index_n_heads=4, index_head_dim=32, index_topk=16,
    engram_layer_ids=[1, 4], engram_head_dim=32, dspark_target_layer_ids=[9, 10, 11],
    dspark_markov_rank=32,
)
_NANO512 = dict(
    _COMMON_TEXT, hidden_size=256, num_hidden_layers=8, num_attention_heads=4, head_dim=512,
    qk_rope_head_dim=64, q_lora_rank=128, o_groups=2, o_lora_rank=64, moe_intermediate_size=64,
    n_routed_experts=8, num_experts_per_tok=3, sliding_window=128,
    compress_ratios=[0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0],
    kv_source_layer_ids=[2, 4], index_source_layer_ids=[2, 4, 6], candidate_source_layer_id=4,
    candidate_topk_blocks=128, candidate_block_size=8, index_n_heads=8, index_head_dim=128, index_topk=512,
    engram_layer_ids=[1, 2], engram_head_dim=64, dspark_target_layer_ids=[5, 6, 7],
    dspark_markov_rank=64,
)


def root_config(text: dict, vision: dict | None, image_token_id: int) -> dict:
    cfg = dict(
        architectures=["DeepseekV41ForCausalLM"], model_type="deepseek_v41", dtype="bfloat16",
        bos_token_id=0, eos_token_id=1, pad_token_id=2, image_token_id=image_token_id,
        quantization_config=dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 32],
                                 scale_fmt="ue8m0", expert_dtype="fp4"),
        text_config=text,
    )
    if vision:
        cfg["vision_config"] = vision
    return cfg


PRESETS = {  # name -> (text_config, seed, shards)
    "nano": (_NANO, 41, 2),
    "nano512": (_NANO512, 512, 3),
}

# ------------------------------------------------------------------------------------ number formats

E4M3_VALUES = np.array(  # magnitudes of codes 0x00..0x7E
    [(c & 7) * 2.0**-9 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)], dtype=np.float64)
_E4M3_MID = (E4M3_VALUES[1:] + E4M3_VALUES[:-1]) / 2


def e4m3_codes(x: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to the even code, saturate at 448."""
    mag = np.abs(x.astype(np.float64))
    lo = np.searchsorted(_E4M3_MID, mag, side="left")     # number of midpoints < mag
    tie = (lo < 126) & (_E4M3_MID[np.minimum(lo, 125)] == mag) & (lo % 2 == 1)
    return (lo + tie).astype(np.uint8) | (np.signbit(x).astype(np.uint8) << 7)


def e8m0_codes(amax: np.ndarray, top: float) -> np.ndarray:
    """Byte of the smallest power of two s with amax / s <= top (exponent field, +1 if mantissa)."""
    ratio = amax.astype(np.float32) * np.float32(1.0 / top)
    bits = ratio.view(np.uint32)
    return (((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0)).astype(np.uint8)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    b = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype(np.uint16)


# ------------------------------------------------------------------------------------- safetensors out

_DTYPE = {"BF16": np.uint16, "F32": np.float32, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "I8": np.uint8}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    header, blob, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (dtype, arr) in tensors.items():
        assert arr.dtype == _DTYPE[dtype], (name, dtype, arr.dtype)
        raw = np.ascontiguousarray(arr).tobytes()
        header[name] = {"dtype": dtype, "shape": list(arr.shape), "data_offsets": [at, at + len(raw)]}
        blob.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(blob))


# ------------------------------------------------------------------------------------------ tokenizer


def byte_alphabet() -> dict[str, int]:
    """The printable stand-in of every byte in a byte-level vocabulary, inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    shifted = (b for b in range(256) if b not in set(printable))
    table.update({chr(0x100 + i): b for i, b in enumerate(shifted)})
    return table


class Tokenizer:
    """What the generator needs of a byte-level tokenizer.json: its vocabulary and the text of one token."""

    def __init__(self, path: Path):
        self.raw = path.read_bytes()
        tokenizer = json.loads(self.raw)
        ids = dict(tokenizer["model"]["vocab"])
        ids.update({t["content"]: t["id"] for t in tokenizer["added_tokens"]})
        self.ids = ids
        self.tokens = [""] * len(ids)
        for token, i in ids.items():
            self.tokens[i] = token
        self._alphabet = byte_alphabet()

    def decode(self, i: int) -> str:
        token = self.tokens[i]
        if all(c in self._alphabet for c in token):
            return bytes(self._alphabet[c] for c in token).decode("utf-8", errors="replace")
        return token  # a special token that no byte sequence spells


def engram_key(text: str, raw: str) -> str:
    """What two tokens must share to be one token to the Engram hash."""
    if "\ufffd" in text:
        return raw
    n = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    n = "".join(c for c in n if not unicodedata.category(c).startswith("M"))
    n = "".join(c.lower() for c in n)
    folded, in_space = [], False
    for c in n:
        space = c in " \t\r\n"
        if not (space and in_space):
            folded.append(" " if space else c)
        in_space = space
    n = "".join(folded)
    n = " " if n == " " else n.strip()
    return n if n else text


def engram_vocabulary_size(tokenizer: Tokenizer) -> int:
    return len({engram_key(tokenizer.decode(i), t) for i, t in enumerate(tokenizer.tokens)})


# ------------------------------------------------------------------------------------------- weights

class Draw:
    """One random stream per tensor name, so adding a tensor leaves all others unchanged."""

    def __init__(self, seed: int):
        self.seed = seed
        self.out: dict[str, tuple[str, np.ndarray]] = {}

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *name.encode()])

    def normal(self, name: str, shape) -> np.ndarray:
        return self.rng(name).standard_normal(shape, dtype=np.float32)

    def put(self, name: str, dtype: str, arr: np.ndarray) -> None:
        assert name not in self.out, name
        self.out[name] = (dtype, arr)

    def bf16(self, name: str, x: np.ndarray) -> None:
        self.put(name, "BF16", bf16_bits(x))

    def f32(self, name: str, x: np.ndarray) -> None:
        self.put(name, "F32", np.ascontiguousarray(x, dtype=np.float32))

    def fp8(self, name: str, n: int, k: int, gain: float) -> None:
        w = self.normal(name, (n, k)) * np.float32(gain * k**-0.5)
        # a spread of tile magnitudes: the scale grid must matter
        tn, tk = -(-n // 32), -(-k // 32)
        tile = 2.0 ** self.rng(name + "#tile").integers(-1, 2, (tn, tk)).astype(np.float32)
        w = w * np.repeat(np.repeat(tile, 32, 0)[:n], 32, 1)[:, :k]
        pad = np.zeros((tn * 32, tk * 32), dtype=np.float32)
        pad[:n, :k] = w
        amax = np.maximum(np.abs(pad.reshape(tn, 32, tk, 32)).max((1, 3)), 1e-4)
        code = e8m0_codes(amax, 448.0)
        s = 2.0 ** (code.astype(np.float64) - 127)
        self.put(name + ".weight", "F8_E4M3", e4m3_codes(w / np.repeat(np.repeat(s, 32, 0)[:n], 32, 1)[:, :k]))
        self.put(name + ".scale", "F8_E8M0", code)

    def fp4(self, name: str, n: int, k: int, gain: float) -> None:
        # uniform codes have an RMS of about 3.2; the scale exponent carries the gain
        r = self.rng(name)
        self.put(name + ".weight", "I8", r.integers(0, 256, (n, k // 2), dtype=np.uint8))
        exp = round(math.log2(gain * k**-0.5 / 3.2))
        self.put(name + ".scale", "F8_E8M0", (127 + exp + r.integers(-1, 2, (n, k // 32))).astype(np.uint8))

    def norm(self, name: str, n: int, mean: float) -> None:
        self.bf16(name, mean * (1 + 0.1 * self.normal(name, n)))

    def lin(self, name: str, n: int, k: int, gain: float = 1.0, bias: bool = False) -> None:
        self.bf16(name + ".weight", self.normal(name, (n, k)) * np.float32(gain * k**-0.5))
        if bias:
            self.bf16(name + ".bias", 0.1 * self.normal(name + ".bias", n))


def expert(d: Draw, name: str, dim: int, inter: int, put, hot: bool) -> None:
    """`hot`: w1 and w3 large enough that the clamp at swiglu_limit bites on most rows; w2 makes up for it."""
    put(name + ".w1", inter, dim, 1.5 * (32 if hot else 1))
    put(name + ".w3", inter, dim, 1.5 * (32 if hot else 1))
    put(name + ".w2", dim, inter, 0.05 / (400 if hot else 1))        # measured 1.05; see `block`


def block(d: Draw, p: str, c: dict, n_experts: int, hot: set[int]) -> None:
    """One block. Its two outputs are kept at about a twentieth of the residual: FP8 activations turn any rounding
    difference into a few per cent of a sublayer's output, and a random network whose residual does not dominate
    amplifies that until two correct implementations share no digit."""
    D, hc, dh, H, ql = c["hidden_size"], c["hc_mult"], c["head_dim"], c["num_attention_heads"], c["q_lora_rank"]
    G, ol, I = c["o_groups"], c["o_lora_rank"], c["moe_intermediate_size"]
    d.fp8(p + "attn.wq_a", ql, D, 1.6)
    d.norm(p + "attn.q_norm.weight", ql, 0.97)
    d.fp8(p + "attn.wq_b", H * dh, ql, 1.8)          # measured 0.95; raised so that attention is not flat
    d.fp8(p + "attn.wkv", dh, D, 1.8)
    d.norm(p + "attn.kv_norm.weight", dh, 0.4)
    d.fp8(p + "attn.wo_a", G * ol, H * dh // G, 1.6)
    d.fp8(p + "attn.wo_b", D, G * ol, 0.012)          # measured 1.9; see `block`
    d.f32(p + "attn.attn_sink", d.normal(p + "attn.attn_sink", H))
    d.norm(p + "attn_norm.weight", D, 0.025)
    d.norm(p + "ffn_norm.weight", D, 0.2)
    mix = (2 + hc) * hc
    for site in ("attn", "ffn"):
        d.f32(p + f"hc_{site}_fn", d.normal(p + f"hc_{site}_fn", (mix, hc * D)) * (hc * D) ** -0.5)
        # Keep the streams apart (a comb close to a permutation, unequal post weights) and the collapse uneven:
        # with equal streams a mix-up of streams, of sites or of the axis of comb would not show. The permutation
        # is the identity at the attention site and a cyclic shift, which is not symmetric, at the FFN site.
        base = d.normal(p + f"hc_{site}_base", mix) * np.repeat(np.float32([1.0, 1.5, 0.7]), [hc, hc, hc * hc])
        base[2 * hc:] += 4.0 * np.roll(np.eye(hc, dtype=np.float32), int(site == "ffn"), axis=1).ravel()
        d.f32(p + f"hc_{site}_base", base)
        d.f32(p + f"hc_{site}_scale", 0.5 + 0.1 * d.normal(p + f"hc_{site}_scale", 3))
    d.lin(p + "ffn.gate", n_experts, D, 2.9)
    d.f32(p + "ffn.gate.bias", 0.1 * d.normal(p + "ffn.gate.bias", n_experts))
    d.f32(p + "ffn.gate.bias_vl", 0.3 * d.normal(p + "ffn.gate.bias_vl", n_experts))  # other choices than bias
    expert(d, p + "ffn.shared_experts", D, I, d.fp8, -1 in hot)
    for e in range(n_experts):
        expert(d, p + f"ffn.experts.{e}", D, I, d.fp4, e in hot)


def make_tensors(cfg: dict, seed: int) -> dict[str, tuple[str, np.ndarray]]:
    c, v = cfg["text_config"], cfg.get("vision_config")
    D, L, dh, hc, V = c["hidden_size"], c["num_hidden_layers"], c["head_dim"], c["hc_mult"], c["vocab_size"]
    M, ql = c["num_nextn_predict_layers"], c["q_lora_rank"]
    di, Hi = c["index_head_dim"], c["index_n_heads"]
    d = Draw(seed)
    embed = 0.12 * d.normal("embed.weight", (V, D))
    embed[c["dspark_noise_token_id"]] *= 0.25   # drafts must depend on their context, not on the noise embedding
    d.bf16("embed.weight", embed)
    d.lin("head", V, D, 3.0)
    d.norm("norm.weight", D, 1.0)
    for l in range(L):
        p = f"layers.{l}."
        # experts 1 and 4 of every fourth layer and the shared expert of layer 1 run into the SwiGLU clamp
        hot = {1, 4} if l % 4 == 3 else ({-1} if l == 1 else set())
        block(d, p, c, c["n_routed_experts"], hot)
        if l in c["kv_source_layer_ids"]:
            r = c["compress_ratios"][l]
            d.lin(p + "attn.compressor.wkv", dh, D, 1.8)
            if r > 1:
                # attn_norm leaves an RMS of 0.025: without this gain the pooling softmax would be flat
                d.lin(p + "attn.compressor.wgate", dh, D, 1.0 / 0.025)
            d.norm(p + "attn.compressor.norm.weight", dh, 0.6)
            d.lin(p + "attn.indexer.wk", di, dh)
            d.norm(p + "attn.indexer.k_norm.weight", di, 0.5)
        if l in c["index_source_layer_ids"]:
            d.fp8(p + "attn.indexer.wq_b", Hi * di, ql, 1.0)
            # mostly positive head weights, a few negative ones; 1/0.025 undoes attn_norm
            d.bf16(p + "attn.indexer.weights_proj.weight",
                   (d.normal(p + "attn.indexer.weights_proj", (Hi, D)) * np.float32(D**-0.5 / 0.025)))
        if l in c["engram_layer_ids"]:
            t = c["engram_layer_ids"].index(l)
            rows, hd = c["engram_num_embeddings"][t], c["engram_head_dim"]
            cols = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
            w = 0.5 * d.normal(p + "engram.embed", (rows, hd)) * 2.0 ** d.rng(p + "engram.embed#row").integers(
                -2, 3, (rows, 1)).astype(np.float32)
            g = w.reshape(rows, hd // 32, 32)
            code = e8m0_codes(np.maximum(np.abs(g).max(-1), 1e-4), 448.0)
            d.put(p + "engram.embed.weight", "F8_E4M3",
                  e4m3_codes(g / (2.0 ** (code.astype(np.float64) - 127))[..., None]).reshape(rows, hd))
            d.put(p + "engram.embed.scale", "F8_E8M0", code)
            d.fp8(p + "engram.wkv", (hc + 1) * D, cols * hd, 0.012)
            for which in ("q_weight", "k_weight"):       # unit-size products: gates spread over (0, 1)
                d.bf16(p + f"engram.{which}", 1.2 * (1 + 0.3 * d.normal(p + f"engram.{which}", (hc, D))))
    ne = c["dspark_n_routed_experts"] or c["n_routed_experts"]
    for m in range(M):
        p = f"mtp.{m}."
        block(d, p, c, ne, {2} if m == 1 else set())
        if m == 0:
            d.fp8(p + "main_proj", D, D * len(c["dspark_target_layer_ids"]), 1.0)
            d.norm(p + "main_norm.weight", D, 1.0)
        if m == M - 1:
            rank = c["dspark_markov_rank"]
            d.norm(p + "norm.weight", D, 1.0)
            d.bf16(p + "markov_head.embed.weight", d.normal(p + "markov_head.embed.weight", (V, rank)))
            d.bf16(p + "markov_head.head.weight",
                   1.5 * rank**-0.5 * d.normal(p + "markov_head.head.weight", (V, rank)))
            d.bf16(p + "confidence_head.proj.weight",
                   2.0 * (D + rank) ** -0.5 * d.normal(p + "confidence_head.proj.weight", (1, D + rank)))
    if v:
        E, F, p, r = v["hidden_size"], v["intermediate_size"], v["patch_size"], v["downsample_ratio"]
        d.lin("vision.patch_embed.proj", E, 3 * p * p, 1.5, bias=True)
        for i in range(v["num_hidden_layers"]):
            b = f"vision.blocks.{i}."
            d.norm(b + "norm1.weight", E, 1.0)
            d.lin(b + "attn.wqkv", 3 * E, E, 1.5, bias=True)
            d.lin(b + "attn.wo", E, E, 1.0, bias=True)
            d.norm(b + "norm2.weight", E, 1.0)
            d.lin(b + "mlp.w1", 2 * F, E, 1.5)
            d.lin(b + "mlp.w2", E, F, 1.0)
        d.norm("vision.norm.weight", E, 1.0)
        d.lin("aligner.w1", D, E * r * r, 1.2, bias=True)
        d.bf16("aligner.w2.weight", 0.2 * D**-0.5 * d.normal("aligner.w2", (D, D)))
        d.bf16("aligner.w2.bias", 0.02 * d.normal("aligner.w2.bias", D))
        for which in ("image_start", "image_end", "image_newline"):
            d.bf16(which, 0.12 * d.normal(which, D))
    return d.out


# --------------------------------------------------------------------------------------------- output

def check_config(cfg: dict) -> None:
    """The rules that a hand-written geometry breaks most easily."""
    c = cfg["text_config"]
    L, M, r = c["num_hidden_layers"], c["num_nextn_predict_layers"], c["compress_ratios"]
    kv, ix, cand = c["kv_source_layer_ids"], c["index_source_layer_ids"], c.get("candidate_source_layer_id", -1)
    assert len(r) == L + M and not any(r[L:]) and set(kv) <= set(ix)
    for l in range(L):
        if r[l]:
            assert r[max(s for s in kv if s <= l)] == r[l] and any(s <= l for s in ix)
    if cand >= 0:
        assert cand in kv and max(kv) == cand
        assert (c["candidate_topk_blocks"] - 1) * c["candidate_block_size"] + 1 >= c["index_topk"]
    for k in ("hidden_size", "q_lora_rank", "head_dim", "moe_intermediate_size", "index_head_dim", "engram_head_dim"):
        assert c[k] % 32 == 0, k
    assert c["num_attention_heads"] % c["o_groups"] == 0
    assert (c["num_attention_heads"] * c["head_dim"] // c["o_groups"]) % 32 == 0
    assert c["o_groups"] * c["o_lora_rank"] % 32 == 0


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_checkpoint(out: Path, cfg: dict, tensors: dict, num_shards: int, tokenizer: Tokenizer) -> None:
    out.mkdir(parents=True, exist_ok=True)
    # deal the tensors out by size, largest first, so that no shard follows the layer order
    parts: list[dict] = [{} for _ in range(num_shards)]
    load = [0] * num_shards
    for name in sorted(tensors, key=lambda n: (-tensors[n][1].nbytes, n)):
        i = load.index(min(load))
        parts[i][name] = tensors[name]
        load[i] += tensors[name][1].nbytes
    weight_map = {}
    for i, part in enumerate(parts):
        shard = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        write_safetensors(out / shard, part)
        weight_map.update({name: shard for name in part})
    write_json(out / "model.safetensors.index.json",
               {"metadata": {"total_size": sum(load)}, "weight_map": dict(sorted(weight_map.items()))})
    write_json(out / "config.json", cfg)
    bos, eos, pad = tokenizer.tokens[:3]
    write_json(out / "tokenizer_config.json",
               {"add_bos_token": False, "add_eos_token": False, "bos_token": bos, "eos_token": eos, "pad_token": pad,
                "clean_up_tokenization_spaces": False,
                "model_max_length": cfg["text_config"]["max_position_embeddings"],
                "tokenizer_class": "PreTrainedTokenizerFast"})
    (out / "tokenizer.json").write_bytes(tokenizer.raw)


def verify(out: Path, sha256_list: Path) -> list[str]:
    """Every file of the list has its digest, and there is no other file."""
    problems, listed = [], set()
    for line in sha256_list.read_text().splitlines():
        want, name = line.split(maxsplit=1)
        listed.add(name)
        got = hashlib.sha256((out / name).read_bytes()).hexdigest() if (out / name).is_file() else "no such file"
        if got != want:
            problems.append(f"{out / name}: SHA-256 is {got}, expected {want}")
    problems += [f"{p}: not in {sha256_list}" for p in sorted(out.iterdir()) if p.name not in listed]
    return problems


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("preset", nargs="?", choices=sorted(PRESETS))
    ap.add_argument("out", type=Path)
    ap.add_argument("--config", type=Path, help="JSON with text_config, vision_config, image_token_id")
    ap.add_argument("--seed", type=int)
    ap.add_argument("--shards", type=int)
    ap.add_argument("--tokenizer", type=Path, required=True, help="byte-level tokenizer.json to copy")
    ap.add_argument("--sha256", type=Path, help="fail unless the files have these digests")
    a = ap.parse_args()
    if (a.preset is None) == (a.config is None):
        ap.error("give either a preset or --config")
    if a.config:
        j = json.loads(a.config.read_text())
        text, vision, image_id = j["text_config"], j.get("vision_config"), j["image_token_id"]
        seed, num_shards = 1, 2
    else:
        text, seed, num_shards = PRESETS[a.preset]
        vision, image_id = _VISION, 2032
    seed = seed if a.seed is None else a.seed
    num_shards = num_shards if a.shards is None else a.shards

    tokenizer = Tokenizer(a.tokenizer)
    assert tokenizer.ids["<｜deepseek_image｜>"] == image_id
    # <｜System｜> shares its id with the DSpark noise token, as in the release
    assert tokenizer.ids["<｜System｜>"] == text["dspark_noise_token_id"]
    text = dict(text, engram_compressed_vocab_size=engram_vocabulary_size(tokenizer))
    cfg = root_config(text, vision, image_id)
    check_config(cfg)
    tensors = make_tensors(cfg, seed)
    write_checkpoint(a.out, cfg, tensors, num_shards, tokenizer)
    params = sum(arr.size * (2 if dtype == "I8" else 1) for dtype, arr in tensors.values() if dtype != "F8_E8M0")
    disk = sum(p.stat().st_size for p in a.out.iterdir())
    print(f"{a.out}: {len(tensors)} tensors, {params / 1e6:.1f} M parameters, {disk / 1e6:.2f} MB")
    if a.sha256:
        problems = verify(a.out, a.sha256)
        for p in problems:
            print(p, file=sys.stderr)
        if problems:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
