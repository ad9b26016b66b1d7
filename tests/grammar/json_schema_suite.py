#!/usr/bin/env python3
"""The JSON-Schema-Test-Suite through `deepinfer check-constraint --cases`.

usage: json_schema_suite.py DEEPINFER [--table FILE] [--update] [--list KIND]

For every test of draft2020-12/*.json (format.json aside: there format is an annotation, we enforce it):
  right accept   valid, and some spelling of it is accepted (compact or spaced, keys in any order, 1.0 as 1)
  right reject   invalid, and no spelling is accepted
  refused        the schema is refused, with pointer and reason
  wrong          anything else
Fails when a test is wrong, or when a file has more refused tests than the table says (it may only shrink).
"""
import argparse
import collections
import glob
import itertools
import json
import pathlib
import subprocess
import sys

SUITE = "/usr/share/perl5/auto/share/dist/Test-JSON-Schema-Acceptance/tests/draft2020-12"
MOST_SPELLINGS = 64


def as_int(value):
    """1.0 as 1, at every depth."""
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [as_int(v) for v in value]
    if isinstance(value, dict):
        return {k: as_int(v) for k, v in value.items()}
    return value


def orders(value):
    """The value with its keys in every order, at every depth."""
    if isinstance(value, list):
        for items in itertools.islice(itertools.product(*(list(orders(v)) for v in value)), MOST_SPELLINGS):
            yield list(items)
    elif isinstance(value, dict):
        for keys in itertools.islice(itertools.permutations(value), MOST_SPELLINGS):
            for items in itertools.islice(itertools.product(*(list(orders(value[k])) for k in keys)), MOST_SPELLINGS):
                yield dict(zip(keys, items))
    else:
        yield value


def spellings(value):
    out = []
    for form in (value, as_int(value)):
        for ordered in itertools.islice(orders(form), MOST_SPELLINGS):
            out.append(json.dumps(ordered, ensure_ascii=False, separators=(",", ":")))
            out.append(json.dumps(ordered, ensure_ascii=False))
    return list(dict.fromkeys(out))


def read_suite(folder):
    """(file, group, test, schema, valid, texts) of every test."""
    for path in sorted(glob.glob(folder + "/*.json")):
        name = pathlib.Path(path).name
        if name == "format.json":
            continue
        for group in json.load(open(path, encoding="utf-8")):
            for test in group["tests"]:
                yield name, group["description"], test["description"], group["schema"], test["valid"], spellings(test["data"])


def judge(program, tests):
    lines = [json.dumps({"so_args": {"type": "json", "value": t[3]}, "texts": t[5]}) for t in tests]
    done = subprocess.run([*program, "--cases", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(tests), "answers in order, one a line"
    for (name, group, test, _, valid, texts), answer in zip(tests, answers):
        if not answer["ok"]:
            assert answer["refused"] and answer["refused"][0]["reason"], "a refusal names its reason"
            yield name, group, test, "refused", answer["refused"][0]
        else:
            assert len(answer["accepted"]) == len(texts)
            hit = any(answer["accepted"])
            kind = ("right_accept" if hit else "wrong") if valid else ("wrong" if hit else "right_reject")
            yield name, group, test, kind, None


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program", nargs="+")
    args.add_argument("--suite", default=SUITE)
    args.add_argument("--table", default=str(pathlib.Path(__file__).parent / "json_schema_suite.tsv"))
    args.add_argument("--update", action="store_true", help="rewrite the table")
    args.add_argument("--list", choices=["wrong", "refused"])
    o = args.parse_args()
    tests = list(read_suite(o.suite))
    if not tests:
        print(f"SKIP: no suite at {o.suite} (package libtest-json-schema-acceptance-perl)")
        return 77
    table = collections.defaultdict(collections.Counter)
    for name, group, test, kind, why in judge(o.program, tests):
        table[name][kind] += 1
        table["total"][kind] += 1
        if kind == "wrong":
            print(f"WRONG {name}: {group}: {test}")
        elif kind == o.list:
            print(f"{kind} {name}: {group}: {test}: {why['pointer']}: {why['reason']}")
    kinds = ["right_accept", "right_reject", "refused", "wrong"]
    rows = ["file\t" + "\t".join(kinds)]
    for name in sorted(n for n in table if n != "total") + ["total"]:
        rows.append(name + "\t" + "\t".join(str(table[name][k]) for k in kinds))
    print("\n".join(rows).expandtabs(14))
    if o.update:
        pathlib.Path(o.table).write_text("\n".join(rows) + "\n")
        return 0
    kept = {line.split("\t")[0]: line.split("\t") for line in pathlib.Path(o.table).read_text().splitlines()[1:]}
    bad = table["total"]["wrong"]
    for name, counts in table.items():
        if name not in kept:
            print(f"{name}: not in the table; run with --update and look at the difference")
            bad += 1
        elif counts["refused"] > int(kept[name][3]):
            print(f"{name}: {counts['refused']} refused, {kept[name][3]} in the table")
            bad += 1
    share = table["total"]["refused"] / sum(table["total"].values())
    print(f"{sum(table['total'].values())} tests, {100 * share:.1f} % refused, {table['total']['wrong']} wrong")
    return 1 if bad or share > 0.60 else 0


if __name__ == "__main__":
    sys.exit(main())
