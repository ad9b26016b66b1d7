#!/usr/bin/env python3
"""Outputs of the worst possible model against independent validators.

usage: random_outputs.py SAMPLER TOKENIZER_DIR [--schemas N] [--outputs N] [--seed N]

Schemas: those of the JSON-Schema-Test-Suite that are not refused, and random combinations of what the gate
knows. Each gives OUTPUTS texts drawn uniformly from the allowed tokens; every one must parse as strict JSON
and be valid for python3-jsonschema. Regular expressions are judged by python's re, in which the classes are
written out as docs/structured_outputs.md defines them: \\s is ECMAScript's (python's has U+001C to U+001F and
U+0085 too, and not U+FEFF), \\w and \\d are ASCII's.

Schemas that jsonschema 4.10 cannot judge, since it cannot follow their references ($anchor, $dynamicRef, $id inside
$defs), are listed and left to the suite's verdicts; there may be few of them.
"""
import argparse
import datetime
import decimal
import json
import pathlib
import random
import re
import subprocess
import sys

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import json_schema_suite  # noqa: E402

REGEXES = [
    r"[a-z]{2,8}(\.[a-z]{2,8})*@[a-z]{2,8}\.(com|org)", r"(a|b)*abb", r"\d{3}-\d{4}", r"(?:0|[1-9]\d*)(\.\d+)?",
    r"[^a-z]{3,5}", r"(foo|bar|baz)(,(foo|bar|baz)){0,3}", r"\w+\s\w+", r"[A-F0-9]{8}(-[A-F0-9]{4}){3}", r"(ab?c){2,}",
    r"x*y+z?", r"[\u0400-\u04ff]{1,9}", r"(\(\d+\)|\[\d+\])+", r"[^\x00-\x7f]{2}", r"(a?){8}a{8}", r"\.{3}|…", r"^start .* end$",
    r"(?P<year>\d{4})/(?P<month>0[1-9]|1[0-2])", r"[+\-]?\d{1,200}", r"\S{5}", r"(a{2}|b{3}){1,4}c",
]


BLANKS = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
CLASSES = {"s": BLANKS, "d": "0-9", "w": "A-Za-z0-9_"}
MOST_UNJUDGED = 25


def dialect(pattern):
    """The pattern with its classes written out."""
    out, inside = [], False
    for part in re.findall(r"\\.|[^\\]", pattern, re.DOTALL):
        if part in ("[", "]"):
            inside = part == "["
        if len(part) == 2 and part[1].lower() in CLASSES:
            assert not (inside and part[1].isupper()), pattern
            members = CLASSES[part[1].lower()]
            part = members if inside else f"[{'^' if part[1].isupper() else ''}{members}]"
        out.append(part)
    return "".join(out)


def with_dialect(schema):
    """The schema with all its patterns in python's words."""
    if isinstance(schema, list):
        return [with_dialect(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            out[key] = dialect(value)
        elif key == "patternProperties" and isinstance(value, dict):
            out[key] = {dialect(name): with_dialect(s) for name, s in value.items()}
        else:
            out[key] = with_dialect(value)
    return out


def scalar(r):
    kind = r.randrange(9)
    if kind == 0:
        low = r.randrange(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + r.randrange(5000)}
    if kind == 1:
        low = r.randrange(-5000, 5000) / 100
        return {"type": "number", "exclusiveMinimum": low, "maximum": low + r.randrange(1, 100)}
    if kind == 2:
        low = r.randrange(0, 8)
        return {"type": "string", "minLength": low, "maxLength": low + r.randrange(0, 30)}
    if kind == 3:
        return {"type": "string", "pattern": r.choice(["^[a-z]+$", "b+", "^x", "y$", "^(ab|c){2,4}$", "^[^0-9]{3}", "[0-9]{2}-"])}
    if kind == 4:
        return {"enum": r.sample(["a", "b\"q", 1, 2.5, None, True, [1, "x"], {"k": []}, "é🙂"], r.randrange(1, 5))}
    if kind == 5:
        return {"type": r.sample(["null", "boolean", "integer", "number", "string"], r.randrange(1, 4))}
    if kind == 6:
        return {"type": "string", "format": r.choice(["date", "date-time", "uuid", "ipv4", "email", "time"])}
    if kind == 7:
        return {"type": "integer", "multipleOf": r.choice([2, 3, 7, 10, 12])}
    return {"type": "string", "pattern": "^[a-f]+$", "minLength": r.randrange(3), "maxLength": 3 + r.randrange(9), "not": {"const": "abc"}}


def schema(r, depth):
    kind = r.randrange(8) if depth > 0 else 0
    if kind <= 1:
        return scalar(r)
    if kind == 2:
        s = {"type": "array", "items": schema(r, depth - 1), "minItems": r.randrange(3)}
        if r.random() < 0.6:
            s["maxItems"] = s["minItems"] + r.randrange(4)
        return s
    if kind == 3:
        return {"type": "array", "prefixItems": [schema(r, depth - 1) for _ in range(r.randrange(1, 4))], "items": r.choice([False, {"type": "integer"}]),
                "minItems": 1}
    if kind == 4:
        return {"anyOf": [schema(r, depth - 1) for _ in range(r.randrange(2, 4))]}
    if kind == 5:
        return {"allOf": [{"type": "object", "properties": {"a": schema(r, depth - 1)}, "required": ["a"]},
                          {"properties": {"b": schema(r, depth - 1)}, "minProperties": 1}]}
    names = r.sample(["a", "b", "key with blanks", "d\"q", "x_1", "é", "n\n"], r.randrange(1, 5))
    s = {"type": "object", "properties": {n: schema(r, depth - 1) for n in names}}
    s["required"] = [n for n in names if r.random() < 0.5]
    extra = r.randrange(5)
    if extra == 0:
        s["additionalProperties"] = False
    elif extra == 1:
        s["additionalProperties"] = schema(r, 0)
    elif extra == 2:
        s["patternProperties"] = {"^s_": schema(r, 0)}
        s["maxProperties"] = len(names) + 2
    elif extra == 3:
        s["if"] = {"required": [names[0]]}
        s["then"] = {"required": [names[-1]]}
        s["additionalProperties"] = False
    return s


def is_rfc3339_time(value):
    if not isinstance(value, str):
        return True
    found = re.fullmatch(r"(\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", value)
    if found is None:
        return False
    datetime.time.fromisoformat(found[1] + ("+00:00" if found[3] in "Zz" else found[3]))
    return True


def strict_json(text):
    def pairs(members):
        return dict(members)  # of a key written twice the last value counts, as for any reader

    def constant(word):
        raise ValueError(word)

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=decimal.Decimal)


def judge_decimals():
    """Numbers as decimals: doubles would round long ones, and blame the generator."""
    decimal.getcontext().prec = 2000
    whole = lambda _, x: not isinstance(x, bool) and (isinstance(x, int) or isinstance(x, decimal.Decimal) and x == x.to_integral_value())
    draft = jsonschema.Draft202012Validator
    draft.TYPE_CHECKER = draft.TYPE_CHECKER.redefine("integer", whole)


def main():
    judge_decimals()
    args = argparse.ArgumentParser()
    args.add_argument("sampler")
    args.add_argument("tokenizer")
    args.add_argument("--schemas", type=int, default=300)
    args.add_argument("--outputs", type=int, default=20)
    args.add_argument("--seed", type=int, default=1)
    o = args.parse_args()
    r = random.Random(o.seed)
    schemas = []
    for _, _, _, s, _, _ in json_schema_suite.read_suite(json_schema_suite.SUITE):
        if s not in schemas:
            schemas.append(s)
    num_suite = len(schemas)
    r.shuffle(schemas)
    schemas = schemas[: o.schemas]
    schemas += [schema(r, 3) for _ in range(o.schemas)]
    lines = [json.dumps({"json": s}) for s in schemas] + [json.dumps({"regex": p}) for p in REGEXES]
    done = subprocess.run([o.sampler, o.tokenizer, str(o.outputs), str(o.seed)], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(lines)
    # Without "time": jsonschema 4.10 takes it as draft 3's, without offset; RFC 3339's is checked by hand.
    checker = jsonschema.FormatChecker(formats=[f for f in jsonschema.FormatChecker.checkers if f != "time"])
    checker.checkers = dict(checker.checkers, time=(is_rfc3339_time, ()))
    used = outputs = unfinished = bad = 0
    unjudged = []
    for s, a in zip(schemas, answers):
        if "refused" in a:
            continue
        used += 1
        unfinished += a["unfinished"]
        bad += a["faults"]
        if a["faults"]:
            print("FAULT", json.dumps(s))
        validator = jsonschema.Draft202012Validator(json.loads(json.dumps(with_dialect(s)), parse_float=decimal.Decimal), format_checker=checker)
        for text in a["texts"]:
            outputs += 1
            try:
                error = next(iter(validator.iter_errors(strict_json(text))), None)
            except ValueError as e:
                error = e
            except jsonschema.RefResolutionError as e:
                unjudged.append((s, str(e)))
                break
            if error is not None:
                bad += 1
                print("INVALID", json.dumps(s), "\n  ", json.dumps(text)[:300], "\n  ", str(error).splitlines()[0][:200])
    for pattern, a in zip(REGEXES, answers[len(schemas):]):
        assert "refused" not in a, (pattern, a)
        bad += a["faults"]
        used += 1
        for text in a["texts"]:
            outputs += 1
            if re.fullmatch(dialect(pattern), text) is None:
                bad += 1
                print("NO MATCH", pattern, json.dumps(text)[:200])
    for s, why in unjudged:
        print("NOT JUDGED", json.dumps(s)[:300], "\n  ", why[:200])
    if len(unjudged) > MOST_UNJUDGED:
        print(f"{len(unjudged)} schemas were not judged, at most {MOST_UNJUDGED} may be")
        bad += 1
    judged = used - len(unjudged)
    print(f"{judged} constraints judged, {len(unjudged)} not;", end=" ")
    print(f"{used} taken of {len(lines)} ({num_suite} different schemas in the suite), {outputs} outputs, {unfinished} unfinished, {bad} wrong")
    return 1 if bad or outputs < judged * o.outputs * 9 // 10 else 0


if __name__ == "__main__":
    sys.exit(main())
