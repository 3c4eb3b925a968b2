"""The records of the encoder's golden files: request bodies as text, each with a name and the reason it is there.

Bodies are text because spelling matters: number forms, duplicate keys, escapes and key order would be lost in a parsed value.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Iterator

NOUL = {"q": {"type": "noul", "instructions": "Is it so?"}}


@dataclass(frozen=True)
class Case:
    """One request body.

    `quirk` marks a form that only the duck typing of Python accepts, which a server may refuse.
    """

    name: str
    why: str
    body: str
    quirk: bool = False


def body(state: Any, questions: dict[str, Any] | None = None, **more: Any) -> str:
    """Spells a body from Python values, non-ASCII characters as themselves."""
    return json.dumps(
        {"model": "clef-flash", "state": state, "questions": questions or NOUL, **more}, ensure_ascii=False
    )


def raw(state: str, questions: str = '{"q":{"type":"noul","instructions":"Is it so?"}}') -> str:
    """Spells a body from JSON text."""
    return f'{{"model":"clef-flash","state":{state},"questions":{questions}}}'


def all_cases() -> list[Case]:
    """Returns every case; names are unique."""
    cases = [
        *plain(),
        *option_forms(),
        *instruction_forms(),
        *number_forms(),
        *string_forms(),
        *shapes(),
        *special_tokens(),
        *scripts(),
        *blanks_and_symbols(),
        *sizes(),
        *fuzzed(),
    ]
    names = [case.name for case in cases]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    return cases


TICKET = (
    "Since yesterday's update the export button does nothing. We have a board meeting in two hours and need the "
    "quarterly numbers. Order ref 7731."
)
TICKET_QUESTIONS = {
    "urgent": {"type": "noul", "instructions": "Does the writer need help within the same day?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should take this?",
        "criteria": {"platform": "Product defects", "billing": "Invoices, refunds", "success": "How-to questions"},
    },
    "severity": {
        "type": "score",
        "instructions": "How badly is the customer blocked?",
        "criteria": ["Not blocked", "Partly blocked, has a workaround", "Fully blocked"],
    },
}


def plain() -> Iterator[Case]:
    """Ordinary requests."""
    yield Case("ticket", "three kinds in one request", body(TICKET, TICKET_QUESTIONS))
    yield Case(
        "ticket_as_object",
        "a structured state",
        body({"text": TICKET, "meta": {"z": 1, "a": [True, None]}}, TICKET_QUESTIONS),
    )
    yield Case("empty_state", "nothing between prefix and schema", body(""))
    yield Case("one_blank_state", "a lone blank", body(" "))
    for name, value in [
        ("null", None),
        ("true", True),
        ("false", False),
        ("zero", 0),
        ("list", []),
        ("object", {}),
        ("number", 12.5),
    ]:
        yield Case(f"state_{name}", "a state that is not a string is rendered as JSON", body(value))
    yield Case(
        "order_of_questions",
        "request order, not key order: with a joint schema it changes the answers",
        body(
            "x",
            {
                "b": {"type": "noul"},
                "a": {"type": "noul"},
                "B": {"type": "noul"},
                "10": {"type": "noul"},
                "9": {"type": "noul"},
            },
        ),
    )
    yield Case(
        "unknown_fields",
        "ignored at the top and in questions",
        body("x", {"q": {"type": "noul", "weight": 3, "x": {"y": 1}}}, seed=1, temperature=0.5, x_trace_id="t"),
    )
    yield Case("any_model", "any model name", raw('"x"').replace("clef-flash", "jev-latest"))
    yield Case("record_id", "the id is not in the prompt", body("x", id="r-17"))


def option_forms() -> Iterator[Case]:
    """How criteria become options."""

    def noul(name: str, why: str, criteria: str, quirk: bool = False) -> Case:
        return Case(
            f"noul_{name}",
            why,
            raw('"x"', f'{{"q":{{"type":"noul","instructions":"I","criteria":{criteria}}}}}'),
            quirk,
        )

    for name, text in [
        ("null", "null"),
        ("empty", "{}"),
        ("false", "false"),
        ("zero", "0"),
        ("blank_string", '""'),
        ("empty_list", "[]"),
    ]:
        yield noul(f"criteria_{name}", "falsy criteria mean the defaults", text, quirk=name not in ("null", "empty"))
    yield noul("true_only", "one side given, the other keeps its default", '{"true":"Agreed."}')
    yield noul("false_only", "one side given, the other keeps its default", '{"false":"Denied."}')
    yield noul("both", "both sides given, the order stays true, false", '{"false":"Denied.","true":"Agreed."}')
    yield noul("true_null", "an explicit null drops the description", '{"true":null}')
    yield noul("false_null", "an explicit null drops the description", '{"false":null,"true":"Agreed."}')
    yield noul("both_null", "no description at all", '{"false":null,"true":null}')
    yield noul("other_keys", "keys other than true and false are ignored", '{"yes":"Y","true":"T","maybe":1}')
    yield noul("case_of_keys", "True is not true", '{"True":"T","FALSE":"F"}')
    yield noul("structured", "descriptions of any JSON kind", '{"true":{"b":1,"a":[1,2]},"false":["x",null]}')
    yield noul("falsy_descriptions", "empty is not null", '{"true":"","false":0}')
    yield noul("falsy_descriptions_2", "empty is not null", '{"true":[],"false":false}')
    yield noul("pairs", "a list of pairs updates a dict", '[["true","T"]]', quirk=True)
    yield noul("two_letter_strings", "a list of two-letter strings updates a dict", '["ab"]', quirk=True)

    def choice(name: str, why: str, criteria: str) -> Case:
        return Case(
            f"choice_{name}", why, raw('"x"', f'{{"q":{{"type":"choice","instructions":"I","criteria":{criteria}}}}}')
        )

    yield choice("one", "a single option", '{"only":"the one"}')
    yield choice("null_descriptions", "options without a description", '{"a":null,"b":null}')
    yield choice(
        "mixed_case", "scored in code point order", '{"zeta":null,"alpha":null,"Mid":null,"beta":null,"_misc":null}'
    )
    yield choice("prefixes", "an option that begins another", '{"10":"ten","1":"one","100":"hundred","01":null}')
    yield choice("empty_id", "an empty option id", '{"":"nothing","a":"something"}')
    yield choice(
        "astral",
        "code point order is not UTF-16 order",
        '{"\\uff5e":"bmp","\\ud83d\\ude00":"astral","\\ufffd":"bmp","z":"ascii"}',
    )
    yield choice("accents", "no collation, no normalisation before sorting", '{"é":1,"e\\u0301":2,"f":3,"z":4,"E":5}')
    yield choice("duplicate", "a doubled option keeps its last description", '{"a":"first","b":"x","a":"last"}')
    yield choice(
        "escapes",
        "quotes, backslashes and control characters in ids and descriptions",
        '{"a\\"b":"q\\"q","c\\\\d":"s\\\\s","n\\nl":"t\\tt","\\u0001":"\\u001f","/":"\\/"}',
    )
    yield choice(
        "kinds",
        "descriptions of every JSON kind",
        '{"a":true,"b":1.50,"c":[],"d":{},"e":"","f":{"k":[1,{"z":0,"y":-0}]},"g":null}',
    )
    yield choice("blank_ids", "ids of blanks", '{" ":"one","  ":"two","\\t":"tab","\\u00a0":"nbsp"}')
    yield choice("numbers_as_ids", "sorted as text", '{"2":"b","10":"a","-1":"c","1e3":"d"}')

    def score(name: str, why: str, criteria: str, quirk: bool = False) -> Case:
        return Case(
            f"score_{name}",
            why,
            raw('"x"', f'{{"q":{{"type":"score","instructions":"I","criteria":{criteria}}}}}'),
            quirk,
        )

    yield score("one", "a single level", '["all"]')
    yield score("ten", "ten levels", json.dumps([f"level {i}" for i in range(10)]))
    yield score("twelve", "ids 10 and 11 stay in order", json.dumps([f"level {i}" for i in range(12)]))
    yield score(
        "objects", "levels as objects", '[{"name":"low","max":10},{"name":"high","max":1e2},{"z":null,"a":true}]'
    )
    yield score("lists", "levels as lists", '[["a","b"],[],[[1]]]')
    yield score("nulls", "a null level has no description", '[null,"x",null]')
    yield score("scalars", "levels as numbers and booleans", "[0,1,2.5,true,false,-0.0]")
    yield score("empty_strings", "empty strings stay", '["","",""]')
    yield score("same", "equal levels", '["same","same"]')
    yield score("object_as_levels", "the keys become the levels, unsorted", '{"b":1,"a":2}', quirk=True)
    yield score("string_as_levels", "the characters become the levels", '"low"', quirk=True)


def instruction_forms() -> Iterator[Case]:
    """What stands for the instructions."""

    def question(name: str, why: str, text: str, qid: str = "q", quirk: bool = False) -> Case:
        comma = "," if text else ""
        return Case(
            f"instructions_{name}",
            why,
            raw('"x"', f'{{{json.dumps(qid)}:{{"type":"score"{comma}{text},"criteria":["a","b"]}}}}'),
            quirk,
        )

    yield question("absent", "the id is the instruction", "", "how_severe")
    yield question("null", "the id is the instruction", '"instructions":null', "how severe?")
    yield question("empty", "the id is the instruction", '"instructions":""', "Wie schlimm ist es?")
    for name, text in [
        ("zero", "0"),
        ("false", "false"),
        ("true", "true"),
        ("list", "[]"),
        ("object", "{}"),
        ("blank", '" "'),
        ("float", "1.0"),
        ("newline", '"\\n"'),
    ]:
        yield question(name, "not null and not empty text: rendered", f'"instructions":{text}')
    yield question(
        "structured",
        "an object is rendered with sorted keys",
        '"instructions":{"ask":"Is it?","Context":{"z":1,"a":"b"},"list":[1,2,"x"]}',
    )
    yield question("long_list", "a list is rendered compactly", '"instructions":["one", "two" , {"three" : 3}]')
    yield question("in_other_scripts", "not ASCII", '"instructions":"緊急ですか？ Срочно? هل هو عاجل؟"')
    yield question(
        "with_markup",
        "text that looks like the prompt's own",
        '"instructions":"\\nFIELD 2\\nID: other\\nTYPE: noul\\nINSTRUCTION: x\\nEND FIELD\\n"',
    )
    for name, qid in [
        ("blank", " "),
        ("newline", "a\nb"),
        ("control", "a\x1b[31m"),
        ("emoji", "🙂"),
        ("hangul", "질문"),
        ("colon", "ID: x"),
        ("quote", 'a"b'),
        ("long", "very_" * 60),
    ]:
        yield question(f"id_{name}", "any text is an id and appears raw", "", qid)
    yield question("empty_id", "an empty id with instructions has a span", '"instructions":"I"', "")
    yield question(
        "empty_id_and_empty",
        "an empty question span: the reference answers NaN, so it has to be refused",
        '"instructions":""',
        "",
        quirk=True,
    )
    yield question(
        "empty_id_and_absent",
        "an empty question span: the reference answers NaN, so it has to be refused",
        "",
        "",
        quirk=True,
    )


def number_forms() -> Iterator[Case]:
    """Numbers by their spelling."""
    groups = {
        "integers": "[0,-0,1,-1,10,123456789,9007199254740993,18446744073709551615,18446744073709551616,-18446744073709551617,123456789012345678901234567890]",
        "plain_floats": "[0.0,-0.0,1.0,1.5,1.50,0.1,0.25,100.0,123456.789,-2.5]",
        "exponents": "[1e0,1E0,1e+2,1E-2,1e5,1e15,1e16,1e17,1e21,1e22,1e100,123e-7,0e0,0e5,-0e0,-0E-3,1.0e3,12e03]",
        "small": "[0.001,0.0001,0.00001,0.000001,1e-4,1e-5,1e-7,1.5e-07,0.0000000000001]",
        "switch_to_exponent": "[9999999999999998.0,9999999999999999.0,1e15,123456789012345680.0,0.0001,0.00009999]",
        "overflow": "[1e400,-1e400,1e308,1.7976931348623157e308,1.7976931348623159e308,17976931348623159e292]",
        "underflow": "[1e-400,-1e-400,5e-324,4.9e-324,2.4703282292062327e-324,2.4703282292062328e-324,2.2250738585072014e-308]",
        "ties": "[0.1,0.2,0.30000000000000004,9007199254740993.0,5e-324,2.5,1.005,8.41,0.5e1,4.35]",
        "long_spellings": "[0.1000000000000000055511151231257827021181583404541015625,1.00000000000000000000000000000000000000001,3.14159265358979323846264338327950288419716939937510]",
        "bare_names": "[NaN,Infinity,-Infinity]",
        "edge_set": '{"capacity_bytes":1e+16,"error_rate":1.5e-07,"ratio":0.25}',
    }
    for name, text in groups.items():
        yield Case(f"numbers_{name}", "numbers print as Python prints them", raw(text))
    for name, text in [
        ("big_float", "1e16"),
        ("nan", "NaN"),
        ("minus_zero", "-0"),
        ("minus_zero_float", "-0.0"),
        ("integer", "42"),
        ("overflow", "1e400"),
    ]:
        yield Case(f"numbers_as_state_{name}", "a number is the whole state", raw(text))
    for digits in (400, 4300):
        yield Case(f"numbers_{digits}_digits", "integers stay exact", raw("[" + "9" * digits + "]"))
    yield Case(
        "numbers_in_options",
        "numbers inside descriptions",
        raw(
            '"x"',
            '{"q":{"type":"choice","instructions":1e2,"criteria":{"a":1e16,"b":[1.0,-0],"c":{"z":1E400,"y":1e-7}}}}',
        ),
    )


def string_forms() -> Iterator[Case]:
    """Escapes, raw and rendered."""
    texts = {
        "escapes": '"a\\"b\\\\c\\/d\\b\\f\\n\\r\\t\\u0041\\u00e9\\u4e2d"',
        "controls": '"' + "".join(f"\\u{i:04x}" for i in range(1, 32)) + '"',
        "nul": '"a\\u0000b"',
        "delete_and_c1": '"\\u007f\\u0080\\u0085\\u009f"',
        "separators": '"a\\u2028b\\u2029c"',
        "surrogate_pairs": '"\\ud83d\\ude00 \\uD834\\uDD1E"',
        "noncharacters": '"\\ufffe\\uffff\\ufdd0 \\udbff\\udfff"',
        "byte_order_mark": '"\\ufeffx\\ufeff"',
        "html": '"<b>&amp;</b>"',
        "crlf": '"a\\r\\nb\\rc\\nd"',
    }
    for name, text in texts.items():
        yield Case(f"string_{name}", "raw inside a plain string state", raw(text))
        yield Case(
            f"string_{name}_rendered",
            "escaped as Python escapes in a structured state",
            raw(f'{{"k":{text},"l":[{text}]}}'),
        )
    yield Case(
        "string_key_escapes",
        "keys are escaped too and sorted unescaped",
        raw('{"\\n":1,"\\u0001":2,"\\"":3,"\\\\":4,"\\u007f":5,"!":6,"é":7}'),
    )
    lone = "TypeError in the reference wherever it meets the tokenizer"
    yield Case("lone_surrogate_in_state", lone, raw('"a\\ud800b"'))
    yield Case("lone_surrogate_low", lone, raw('"\\udc00"'))
    yield Case("lone_surrogate_reversed_pair", lone, raw('"\\ude00\\ud83d"'))
    yield Case("lone_surrogate_in_key", lone, raw('{"\\ud800":1}'))
    yield Case(
        "lone_surrogate_in_option", lone, raw('"x"', '{"q":{"type":"choice","criteria":{"\\ud800":null,"b":null}}}')
    )
    yield Case("lone_surrogate_in_id", lone, raw('"x"', '{"\\ud800":{"type":"noul"}}'))


def nested(depth: int, kind: str) -> str:
    """Spells `depth` levels of lists, objects or both around a 1."""
    opens = {"lists": ["["], "objects": ['{"k":'], "mixed": ["[", '{"k":']}[kind]
    closes = {"lists": ["]"], "objects": ["}"], "mixed": ["]", "}"]}[kind]
    head = "".join(opens[i % len(opens)] for i in range(depth))
    tail = "".join(closes[i % len(closes)] for i in reversed(range(depth)))
    return f"{head}1{tail}"


def shapes() -> Iterator[Case]:
    """Nesting, key order, duplicates."""
    for depth in (127, 128, 129, 200, 300):
        for kind in ("lists", "objects", "mixed"):
            yield Case(f"nesting_{depth}_{kind}", "deep values are legal", raw(nested(depth, kind)))
    yield Case(
        "nesting_in_criteria",
        "deep descriptions are legal",
        raw('"x"', f'{{"q":{{"type":"score","criteria":[{nested(200, "mixed")},{nested(150, "objects")}]}}}}'),
    )
    yield Case(
        "nesting_in_instructions",
        "deep instructions are legal",
        raw('"x"', f'{{"q":{{"type":"noul","instructions":{nested(200, "lists")}}}}}'),
    )
    yield Case(
        "key_order",
        "sorted by code point at every depth",
        raw('{"b":{"z":1,"a":2},"a":[{"y":1,"x":2}],"B":0,"_":1,"10":1,"9":2,"":3}'),
    )
    yield Case(
        "key_order_astral",
        "code points, not UTF-16 units",
        raw('{"\\ud83d\\ude00":1,"\\uffee":2,"\\ue000":3,"z":4,"é":5}'),
    )
    yield Case("key_prefixes", "a prefix sorts first", raw('{"abc":1,"ab":2,"a":3,"abcd":4,"":5}'))
    yield Case("duplicate_keys_in_state", "the last value counts", raw('{"a":1,"b":2,"a":3,"b":{"c":1,"c":2}}'))
    yield Case(
        "duplicate_question",
        "last value, first position",
        raw(
            '"x"',
            '{"a":{"type":"noul","instructions":"first"},"b":{"type":"noul"},"a":{"type":"score","instructions":"last","criteria":["l","m"]}}',
        ),
    )
    yield Case(
        "duplicate_field",
        "the last instruction counts",
        raw('"x"', '{"q":{"type":"noul","instructions":"first","instructions":"last"}}'),
    )
    yield Case(
        "duplicate_state",
        "the last state counts",
        '{"model":"m","state":"first","questions":{"q":{"type":"noul"}},"state":"last"}',
    )
    yield Case(
        "insignificant_blanks",
        "blanks between tokens vanish",
        ' {\n"model" :\t"m" ,\r\n"state" : { "b" : [ 1 , 2 ] , "a" : { } } ,"questions":{"q":{"type":"noul"}} } ',
    )
    yield Case("empty_containers", "spelled without blanks", raw('{"a":[],"b":{},"c":[[],{}],"d":""}'))
    yield Case(
        "strings_only_list", "strings inside a list are quoted", raw('["plain","with \\"quotes\\"","日本語","🙂"]')
    )


ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
]


def special_tokens() -> Iterator[Case]:
    """Added tokens inside the request's own text, which is not escaped."""
    yield Case("special_all", "every added token, unspaced", body("".join(ADDED)))
    yield Case("special_all_spaced", "every added token between blanks", body(" ".join(ADDED)))
    for place, text in [
        ("after_full_stop", ".<|im_end|>"),
        ("after_blanks", "a   <|im_end|>   b"),
        ("between_newlines", "a\n\n<think>\n\nb"),
        ("split", "<|im_end| ><|im_ end|>"),
        ("case", "<|IM_END|><THINK>"),
        ("nested", "<|<|im_end|>|>"),
        ("doubled", "<|im_end|><|im_end|>"),
        ("before_mark", "<|im_end|>\u0301e"),
        ("after_mark", "e\u0301<|im_end|>"),
        ("between_parts_of_a_letter", "e<think>\u0301"),
        ("end_of_word", "word</think>word"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("unfinished", "<|im_en"),
        ("hangul_parts", "\u1112<|im_end|>\u1161\u11ab"),
    ]:
        yield Case(f"special_{place}", "a special string wins over its neighbours", body(text))
    yield Case(
        "special_rendered",
        "inside a rendered object",
        body({"<|im_end|>": "<think>", "a": ["</think>", "x<|im_start|>y"]}),
    )
    yield Case(
        "special_everywhere",
        "in id, instructions, option id and description",
        body(
            "x",
            {
                "<|im_end|>": {
                    "type": "choice",
                    "instructions": "a</think>b",
                    "criteria": {"<think>": "<|im_start|>", "b": {"<|fim_pad|>": "<tool_call>"}},
                }
            },
        ),
    )
    yield Case("special_id_only", "the span is one special token", body("x", {"<|im_end|>": {"type": "noul"}}))


SCRIPTS = {
    "hindi": "हिन्दी में लिखा हुआ एक छोटा वाक्य, क्या यह ज़रूरी है?",
    "thai": "ก็ได้ วันนี้อากาศดีมาก ไม่เป็นไรครับ",
    "arabic": "اللغة العربية جميلة، هل هذا عاجل؟",
    "arabic_vocalised": "بِسْمِ ٱللَّهِ ٱلرَّحْمَٰنِ ٱلرَّحِيمِ",
    "hebrew": "שלום עולם, האם זה דחוף?",
    "hebrew_vocalised": "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "khmer": "ភាសាខ្មែរ គឺជាភាសា",
    "burmese": "မြန်မာဘာသာစကား",
    "tibetan": "བོད་སྐད་ཡིག་",
    "tamil": "தமிழ் மொழி ஒரு செம்மொழி",
    "bengali": "বাংলা ভাষা খুব সুন্দর",
    "telugu": "తెలుగు భాష",
    "sinhala": "සිංහල භාෂාව",
    "georgian": "ქართული ენა ᲥᲐᲠᲗᲣᲚᲘ",
    "armenian": "Հայերեն լեզու, հրատապ է՞",
    "greek": "Ελληνική γλώσσα, ΐ ΰ, τέλος ΣΑΣ",
    "russian": "Срочно ли это? Ёлка, съёмка, й и\u0306",
    "ukrainian": "Чи це терміново? Їжак ґудзик",
    "chinese": "请问这个问题紧急吗？导出按钮不起作用。",
    "chinese_no_merge": "\u4ff1\u4e50\u90e8",
    "japanese": "エクスポートボタンが動きません。カ\u3099ガ゛ﾊﾟ",
    "korean": "내보내기 버튼이 작동하지 않습니다.",
    "korean_decomposed": "\u1112\u1161\u11ab\u1100\u1173\u11af 한글",
    "vietnamese": "Tiếng Việt: chữ quốc ngữ, e\u0302\u0301",
    "turkish": "İstanbul'da ığdır, I ı i İ",
    "german": "Straße, ẞ, Übergrößenträger, e\u0308",
    "amharic": "አማርኛ ቋንቋ",
    "cherokee": "ᏣᎳᎩ ꭰꭱ",
    "mongolian": "ᠮᠣᠩᠭᠣᠯ\u180e",
    "emoji": "🙂👍🏽👨‍👩‍👧‍👦🏳️‍🌈🇩🇪❤️1️⃣",
    "mathematics": "𝔸𝕓𝒄 ∑∫√ x² ½ Ⅷ ① ⅷ",
    "symbols": "©®™€£¥§¶†‡•…‰′″",
    "private_use": "\ue000\uf8ff\U000f0000\U0010fffd",
    "angstrom": "\u212b Å A\u030a",
    "stray_marks": "\u0301a \u0301 \u093f \u0e31",
    "mark_after_digit": "1\u0301 2\u20e3 3\u0e31",
    "reordered_marks": "q\u0307\u0323 q\u0323\u0307",
    "excluded_compositions": "\u0958\u0959 \u2126 \u1e9b\u0323 \ufb1d",
    "compatibility": "ﬁ ﬀ Ａｂｃ ㎏ ㍿ ｶﾞ",
    "tags_and_selectors": "a\ufe0f\ufe0e \U000e0001\U000e0061",
    "zalgo": "z\u0335\u0328\u0302a\u0336\u0321\u0306l\u0334\u0327g\u0337o",
}


def scripts() -> Iterator[Case]:
    """Writing systems: the split pattern has letters without marks, and NFC comes before it."""
    for name, text in SCRIPTS.items():
        yield Case(f"script_{name}", "combining marks, composition and code points past the basic plane", body(text))
    everything = list(SCRIPTS.items())
    for start in range(0, len(everything), 8):
        part = everything[start : start + 8]
        questions = {text: {"type": "choice", "criteria": {name: text, text[:3]: None}} for name, text in part}
        yield Case(
            f"scripts_in_schema_{start // 8}",
            "the same in ids, option ids and descriptions",
            body({n: t for n, t in part}, questions),
        )


def blanks_and_symbols() -> Iterator[Case]:
    """The split pattern's branches."""
    texts = {
        "trailing_blanks": "a   \n\n  b",
        "blanks_at_ends": "   a   ",
        "tabs": "a\t\tb\t c\t",
        "newlines": "\n\n\na\n\n\n",
        "mixed_newlines": "a \r\n \n\r b\r\r",
        "wide_blanks": "a\u00a0b\u3000c\u2003d\u2009e\u202ff",
        "vertical": "a\x0bb\x0cc\x85d\u2028e\u2029f",
        "not_blank": "a\x1cb\x1dc\x1ed\x1fe\u180ef\u200bg\ufeffh",
        "many_blanks": "x" + " " * 37 + "y" + " " * 130 + "\n" + " " * 9,
        "dates_and_money": "2026-10-01 $1,234.50 10:15:30 50% (3.14) #42",
        "digits": "1234567890 ١٢٣ १२३ ① ² ½",
        "contractions": "I'll we've they're it's I'm don't he'd 'S 'LL 'Llama 'Tis 've'll",
        "long_s": "'\u017fy 'ſ x'ſa",
        "other_apostrophes": "don’t I’ll ‘quoted’ `tick`",
        "code": "fn main() {\n    let x: Vec<u8> = vec![0; 16]; // ok\n\tif a && b || !c { return; }\n}\n",
        "json_text": '{"a": [1, 2, {"b": null}]}',
        "paths": "/usr/local/lib/python3.11 C:\\Windows\\System32 https://a.b/c?d=e&f=%20#g",
        "camel_case": "camelCase PascalCase snake_case kebab-case SCREAMING_CASE x86_64 IPv6",
        "punctuation_runs": "!!!??? ... --- === *** ((())) [[]] {{}} <<>> \\\\ // ;;",
        "punctuation_newline": "end.\n\nnext!\n?\n",
        "blank_then_symbol": " .  ,   ;    : \n .",
        "letter_after_symbol": "@name #tag $var %s &amp ^up *bold _it ~home",
        "repeated_letter": "a" * 200 + " " + "ab" * 100,
        "repeated_emoji": "🙂" * 40,
        "base64": "SGVsbG8sIFdvcmxkISBUaGlzIGlzIGEgdGVzdC4=" * 3,
        "hex": "0xDEADBEEF 7f3a9c 06b9509352d2af50",
    }
    for name, text in texts.items():
        yield Case(f"split_{name}", "the branches of the split pattern", body(text))


def sizes() -> Iterator[Case]:
    """Many options, many questions, long texts."""
    yield Case(
        "options_255",
        "the most options that Jev documents",
        body("x", {"q": {"type": "choice", "criteria": {f"option {i}": None for i in range(255)}}}),
    )
    yield Case(
        "options_256",
        "one more is fine",
        body("x", {"q": {"type": "choice", "criteria": {f"o{i}": f"d{i}" for i in range(256)}}}),
    )
    yield Case(
        "levels_100", "many levels", body("x", {"q": {"type": "score", "criteria": [str(i) for i in range(100)]}})
    )
    kinds: list[dict[str, Any]] = [
        {"type": "noul"},
        {"type": "choice", "criteria": {"b": None, "a": "A"}},
        {"type": "score", "criteria": ["low", "high"]},
    ]
    yield Case("questions_64", "field numbers of two digits", body("x", {f"q{i}": kinds[i % 3] for i in range(64)}))
    yield Case("questions_101", "field numbers of three digits", body("x", {f"q{i}": kinds[0] for i in range(101)}))
    yield Case("long_state", "a thousand words", body(" ".join(f"word{i % 97} and" for i in range(500))))
    yield Case(
        "long_description",
        "a long option",
        body("x", {"q": {"type": "choice", "criteria": {"a": TICKET * 6, "b": "short"}}}),
    )
    yield Case("long_word", "no place to split", body("pneumonoultramicroscopicsilicovolcanoconiosis" * 12))


BLOCKS = [
    (0x20, 0x7E, 8),
    (0x00, 0x1F, 1),
    (0x7F, 0xFF, 2),
    (0x100, 0x24F, 2),
    (0x300, 0x36F, 2),
    (0x370, 0x52F, 2),
    (0x590, 0x6FF, 2),
    (0x900, 0xDFF, 3),
    (0xE00, 0xFFF, 2),
    (0x1000, 0x11FF, 2),
    (0x1780, 0x18AF, 1),
    (0x1E00, 0x1FFF, 1),
    (0x2000, 0x206F, 2),
    (0x20A0, 0x23FF, 1),
    (0x2460, 0x27BF, 1),
    (0x3000, 0x30FF, 2),
    (0x4E00, 0x9FFF, 3),
    (0xAC00, 0xD7A3, 2),
    (0xF900, 0xFAFF, 1),
    (0xFB00, 0xFFEF, 1),
    (0x10000, 0x10FFF, 1),
    (0x1D100, 0x1D7FF, 1),
    (0x1F000, 0x1FAFF, 2),
    (0x20000, 0x2A6DF, 1),
    (0xE0000, 0xE01EF, 1),
]


def random_text(rng: random.Random, length: int) -> str:
    """Draws runs of one to six characters from random blocks, with blanks and added tokens thrown in."""
    text = ""
    while len(text) < length:
        low, high, _ = rng.choices(BLOCKS, weights=[weight for _, _, weight in BLOCKS])[0]
        text += "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))
        if rng.random() < 0.3:
            text += rng.choice(
                [" ", "  ", "\n", "\r\n", "\t", " \n ", "\u00a0", "'s", "'", "\u0301", "\u200d", *ADDED[:3]]
            )
    return text


def random_value(rng: random.Random, depth: int) -> Any:
    """Draws a JSON value of at most `depth` levels."""
    pick = rng.random()
    if depth and pick < 0.35:
        return {random_text(rng, rng.randint(0, 6)): random_value(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    if depth and pick < 0.55:
        return [random_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    scalars = [
        lambda: random_text(rng, rng.randint(0, 20)),
        lambda: rng.randint(-(10**6), 10**6),
        lambda: rng.uniform(-1, 1) * 10 ** rng.randint(-12, 20),
        lambda: rng.choice([True, False, None]),
        lambda: rng.getrandbits(rng.randint(1, 200)),
    ]
    return rng.choice(scalars)()


def random_question(rng: random.Random) -> dict[str, Any]:
    """Draws a valid question."""
    kind = rng.choice(["noul", "choice", "score"])
    question: dict[str, Any] = {"type": kind}
    if rng.random() < 0.7:
        question["instructions"] = random_value(rng, 1) if rng.random() < 0.3 else random_text(rng, rng.randint(1, 30))
    if kind == "noul" and rng.random() < 0.5:
        question["criteria"] = {
            key: random_value(rng, 1) for key in rng.sample(["true", "false", "other"], rng.randint(0, 3))
        }
    if kind == "choice":
        question["criteria"] = {
            random_text(rng, rng.randint(0, 8)): random_value(rng, 1) for _ in range(rng.randint(1, 7))
        }
    if kind == "score":
        question["criteria"] = [random_value(rng, 1) for _ in range(rng.randint(1, 6))]
    return question


def fuzzed() -> Iterator[Case]:
    """Seeded random requests."""
    for seed in range(60):
        rng = random.Random(f"encode {seed}")
        state = random_text(rng, rng.randint(20, 120)) if seed % 2 else random_value(rng, 3)
        questions = {random_text(rng, rng.randint(1, 10)): random_question(rng) for _ in range(rng.randint(1, 4))}
        text = json.dumps({"model": "m", "state": state, "questions": questions}, ensure_ascii=rng.random() < 0.5)
        yield Case(f"fuzz_{seed:02}", f"drawn with the seed 'encode {seed}'", text)
