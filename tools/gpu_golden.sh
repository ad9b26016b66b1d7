#!/bin/bash
# Whole-model checks on a device: nano and nano512 with forced choices against the stored goldens, one case free, and
# the chunk law (dumps of different chunk sizes are the same bytes).
#
#   tools/gpu_golden.sh BUILD_DIR WORK_DIR [BACKEND]     needs python3 with numpy
set -uo pipefail
forward=$(readlink -f "${1:?usage: tools/gpu_golden.sh BUILD_DIR WORK_DIR [BACKEND]}")/gpu_forward
mkdir -p "${2:?WORK_DIR}"
work=$(readlink -f "$2")
backend=${3:-cuda}
cd "$(dirname "$0")/.."
failed=0
report() { # name, exit status
    if [ "$2" = 0 ]; then echo "PASS $1"; else echo "FAIL $1"; failed=1; fi
}
for m in nano nano512; do
    python3 tools/make_checkpoint.py "$m" "$work/$m" --tokenizer tests/data/checkpoints/tokenizer.json --sha256 "tests/data/checkpoints/$m.sha256" \
        > "$work/$m.log" 2>&1 || { echo "FAIL checkpoint $m: $(tail -1 "$work/$m.log")"; exit 1; }
    mkdir -p "$work/golden/$m"
    cp "tests/data/golden/$m/floors.json" "$work/golden/$m/"
    for f in tests/data/golden/"$m"/*.safetensors.xz; do
        python3 -c "import lzma,sys; open(sys.argv[2],'wb').write(lzma.open(sys.argv[1]).read())" "$f" "$work/golden/$m/$(basename "$f" .xz)"
    done
done
for c in nano/p1 nano/p2 nano/p3 nano/p17 nano/p300 nano/p301 nano/p3.decode nano/p300.decode nano/p301.decode nano512/p3001 nano512/p3001.decode \
    nano/vision_a nano/vision_b nano/img1 nano/img2 nano/img1.decode nano/img2.decode; do
    golden=$work/golden/$c.exact.safetensors
    force=(--force "$golden")
    case $c in *.decode) force+=(--force "$work/golden/${c%.decode}.exact.safetensors") ;; esac
    # The spans of img1 show the pictures of vision_a and vision_b, that of img2 the second.
    case $c in nano/img1*) pictures="a b" ;; nano/img2*) pictures=b ;; *) pictures= ;; esac
    for picture in $pictures; do force+=(--image "$work/golden/nano/vision_$picture.exact.safetensors"); done
    dump=$work/$(echo "$c" | tr / .)
    "$forward" "$backend" "$work/${c%%/*}" "$golden" "$dump" "${force[@]}" > "$dump.log" 2>&1 &&
        python3 tests/golden/compare.py "$golden" "$dump" --mode forced --partial > "$dump.log" 2>&1
    rc=$?  # before the text, whose $(...) has an exit status of its own
    report "$c forced ($(tail -1 "$dump.log"))" $rc
done
chunk_law() { # model, golden case, chunk sizes
    local model=$1 input=$work/golden/$1/$2.exact.safetensors first=
    shift 2
    for chunk in "$@"; do
        "$forward" "$backend" "$work/$model" "$input" "$work/chunk$chunk" --chunk "$chunk" > "$work/chunk.log" 2>&1 || tail -1 "$work/chunk.log"
        if [ -z "$first" ]; then first=$chunk; continue; fi
        cmp "$work/chunk$first" "$work/chunk$chunk"
        report "$model: chunks of $chunk and $first give the same bytes" $?
    done
}
chunk_law nano p301 512 64 7 1
chunk_law nano512 p3001 512 100
"$forward" "$backend" "$work/nano" "$work/golden/nano/p301.exact.safetensors" "$work/free" > "$work/free.log" 2>&1 &&
    python3 tests/golden/compare.py "$work/golden/nano/p301.exact.safetensors" "$work/free" --mode free --partial > "$work/free.log" 2>&1
rc=$?
report "nano/p301 free ($(tail -1 "$work/free.log"))" $rc
exit $failed
