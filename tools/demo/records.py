"""Turn packages into labelled records: a state, several questions, the expected answers.

Everything random comes from the `random.Random` handed in, so a seed gives the same records. A
question is drawn as `(id, question, expected, about)`; `about` says what an evaluation needs to
know and the model never sees: the task, the class behind every option, the true class.
"""

import json
import random
import string

import labels

KEY_STYLES = ("class", "class", "human", "human", "letter", "number", "phrase")
NOUL_ASKS = (
    "Is this {}?", "Is it {}?", "The package is {}.", "Does the state describe {}?",
    "Would you call this {}?", "It is {}.", "True or false: the package is {}.",
    "Does the description fit {}?",
)
LANGUAGE_ASKS = (
    "Which language is the text in?", "In which language is the text written?",
    "What human language is this?", "Choose the language of the text.",
    "Name the language of the description.",
)
NOUL_CRITERIA = (
    {"true": "Yes.", "false": "No."},
    {"true": "The statement holds for this package.", "false": "The statement does not hold."},
    {"true": "This is the case.", "false": "This is not the case."},
    {"true": "It applies."},
    {"false": "It does not apply."},
    {"true": None, "false": None},
)


# The answer that is far more frequent; most of those questions are passed over.
COMMON = {"game": False, "documentation": False, "developer": True, "library": True}


class Pool:
    """The packages of one split, with what the builders need to draw from them."""

    def __init__(self, rows, split, counts):
        self.rows = [row for row in rows if row["split"] == split]
        self.counts = counts
        families = {}
        for row in self.rows:
            families[row["family"]] = families.get(row["family"], 0) + 1
        # A family of a hundred packages is drawn ten times as often as a single one, not a hundred.
        self.weights = [families[row["family"]] ** -0.5 for row in self.rows]
        self.known = [
            {family.name: family.of(row) for family in labels.FAMILIES} for row in self.rows
        ]
        self.by_section = {}
        self.by_class = {}
        for index, row in enumerate(self.rows):
            self.by_section.setdefault(row["section"], []).append(index)
            for name, classes in self.known[index].items():
                for value in classes:
                    self.by_class.setdefault((name, value), []).append(index)
        total, self.cumulative = 0.0, []
        for weight in self.weights:
            total += weight
            self.cumulative.append(total)

    def draw(self, rng):
        """A package's index: half by weight, half by a rare class, so that no class starves."""
        if rng.random() < 0.55:
            return rng.choices(range(len(self.rows)), cum_weights=self.cumulative)[0]
        family = rng.choice(labels.FAMILIES)
        while True:
            found = self.by_class.get((family.name, rng.choice(list(family.classes))))
            if found:
                return rng.choice(found)


def pick_keys(rng, classes, family_classes, style):
    """Option names for the classes in the given style; all different."""
    if style == "letter":
        return list(string.ascii_uppercase[: len(classes)])
    if style == "number":
        form = rng.choice(("{}", "option_{}", "option {}", "c{}"))
        return [form.format(i + 1) for i in range(len(classes))]
    if style == "class":
        return list(classes)
    if style == "human":
        return [family_classes[c][0] for c in classes]
    return [rng.choice(family_classes[c][1:]) for c in classes]


def choice_question(rng, family, asks, ids, right, wrong):
    """A choice among one right class and some wrong ones; `wrong` holds what is surely wrong."""
    wanted = rng.choice((1, 2, 3, 3, 4, 5, 6, 7, 9))
    offered = [right, *rng.sample(wrong, min(wanted, len(wrong)))]
    rng.shuffle(offered)
    style = rng.choice(KEY_STYLES)
    keys = pick_keys(rng, offered, family, style)
    described = style in ("letter", "number") or rng.random() < 0.6
    criteria = {}
    for key, name in zip(keys, offered):
        words = family[name]
        text = rng.choice(words[1:] if style == "human" else words) if described else None
        if text and rng.random() < 0.3:
            text = text[0].upper() + text[1:] + "."
        criteria[key] = text
    question = {"type": "choice", "instructions": rng.choice(asks), "criteria": criteria}
    about = {"classes": dict(zip(keys, offered)), "right": right}
    return rng.choice(ids), question, keys[offered.index(right)], about


def noul_question(rng, ids, instruction, answer):
    """A yes/no question, its criteria in one of several forms."""
    question = {"type": "noul", "instructions": instruction}
    if rng.random() < 0.25:
        question["criteria"] = rng.choice(NOUL_CRITERIA)
    return rng.choice(ids), question, answer, {"right": "true" if answer else "false"}


def ask_family(rng, pool, index, family):
    """A question about a class of the package: a choice, or yes/no about one class."""
    mine = pool.known[index][family.name]
    if not mine:
        return None
    right = rng.choice(sorted(mine))
    wrong = [c for c in family.classes if c not in mine]
    if rng.random() < 0.68:
        drawn = choice_question(rng, family.classes, family.asks, family.ids, right, wrong)
        drawn[3]["task"] = family.name
        return drawn
    answer = rng.random() < 0.5
    name = right if answer else rng.choice(wrong)
    phrase = rng.choice(family.classes[name][1:])
    ids = (f"is_{name.replace(':', '_')}", family.ids[0], "q", "check")
    drawn = noul_question(rng, ids, rng.choice(NOUL_ASKS).format(phrase), answer)
    drawn[3].update(task=f"{family.name}?", family=family.name, asked=name)
    return drawn


def ask_proposition(rng, pool, index, name):
    """One of the yes/no questions with its own label function."""
    function, ids, asks = labels.PROPOSITIONS[name]
    answer = function(pool.rows[index])
    if answer is None or (answer == COMMON.get(name) and rng.random() < 0.7):
        return None
    instruction, inverted = rng.choice(asks)
    drawn = noul_question(rng, ids, instruction, answer != inverted)
    drawn[3].update(task=name, inverted=inverted)
    return drawn


def ask_score(rng, pool, index, name):
    """A score question; the levels' order is now and then turned round."""
    row = pool.rows[index]
    if name == "specialised":
        value = labels.specialised_of(row, pool.counts)
    elif name == "users":
        value = labels.level(row["users"], labels.USERS_BOUNDS)
    else:
        value = labels.level(row["size"], labels.SIZE_BOUNDS)
    if value is None:
        return None
    ids, asks, wordings = labels.SCORES[name]
    levels = list(rng.choice(wordings))
    turned = rng.random() < 0.15
    if turned:
        levels.reverse()
    expected = len(levels) - 1 - value if turned else value
    question = {"type": "score", "instructions": rng.choice(asks), "criteria": levels}
    about = {"task": name, "right": str(value), "turned": turned}
    return rng.choice(ids), question, expected, about


def ask_language(rng, language):
    """Which language the text of the state is in, as a choice or as yes/no."""
    others = [c for c in labels.LANGUAGES if c != language]
    if rng.random() < 0.7:
        ids = ("text_language", "language_of_text", "written_in", "tongue")
        drawn = choice_question(rng, labels.LANGUAGES, LANGUAGE_ASKS, ids, language, others)
        drawn[3]["task"] = "text language"
        return drawn
    answer = rng.random() < 0.5
    asked = language if answer else rng.choice(others)
    human = labels.LANGUAGES[asked][0]
    ask = rng.choice(("Is the text in {}?", "Is this written in {}?", "The text is {}.",
                      "Could a reader who knows only {} read the text?")).format(human)
    drawn = noul_question(rng, (f"is_{human.lower()}", "text_language", "q"), ask, answer)
    drawn[3].update(task="text language?", asked=asked)
    return drawn


def ask_depends(rng, pool, index):
    """Whether a name stands in the state's list of dependencies."""
    depends = pool.rows[index]["depends"][:12]
    answer = rng.random() < 0.5
    other = pool.rows[pool.draw(rng)]["depends"]
    absent = [name for name in other if name not in pool.rows[index]["depends"]]
    if not depends or not (answer or absent):
        return None
    name = rng.choice(depends if answer else absent)
    ask = rng.choice(("Does it depend on {}?", "Is {} among the dependencies?",
                      "The package needs {}.")).format(name)
    drawn = noul_question(rng, ("depends", "needs_it", "dependency"), ask, answer)
    drawn[3].update(task="depends", asked=name)
    return drawn


def ask_match(rng, pool, index, what, language):
    """Which of several names or summaries belongs to the description in the state."""
    row = pool.rows[index]
    near = pool.by_section[row["section"]]
    options = {}
    for _ in range(rng.choice((2, 2, 3, 3, 4, 5)) * 3):
        other = rng.choice(near) if rng.random() < 0.5 else pool.draw(rng)
        candidate = pool.rows[other]
        if candidate["family"] != row["family"] and language in candidate["texts"]:
            value = candidate["name"] if what == "name" else candidate["texts"][language][0]
            options.setdefault(value, False)
    mine = row["name"] if what == "name" else row["texts"][language][0]
    options.pop(mine, None)
    if not options:
        return None
    values = [mine, *rng.sample(list(options), min(len(options), rng.choice((1, 2, 3, 4))))]
    rng.shuffle(values)
    if rng.random() < 0.5:
        criteria = dict.fromkeys(values)
        expected = mine
    else:
        keys = string.ascii_lowercase if rng.random() < 0.5 else string.ascii_uppercase
        criteria = dict(zip(keys, values))
        expected = keys[values.index(mine)]
    ask = rng.choice(
        ("Which package is this?", "What is the name of the described package?",
         "Choose the name that fits the description.") if what == "name" else
        ("Which summary fits the text?", "Which headline belongs to this description?",
         "Choose the sentence that sums up the text."))
    question = {"type": "choice", "instructions": ask, "criteria": criteria}
    about = {"task": what, "right": mine, "classes": dict(zip(criteria, values))}
    return rng.choice((what, "match", "which")), question, expected, about


def trim(rng, text, long):
    """Now and then only the beginning of a description."""
    if len(text) > 1500 or (len(text) > 300 and rng.random() < 0.3):
        cut = rng.randrange(200, 1500) if not long else rng.randrange(1500, 4000)
        end = text.rfind(" ", 0, cut)
        return text[: end if end > 100 else cut]
    return text


def make_state(rng, row, language, show):
    """The state of one package, as plain text or as JSON; `show` is a set of what to reveal."""
    summary, body = row["texts"][language]
    body = trim(rng, body, "long" in show)
    fields = []
    if "name" in show:
        fields.append((("package", "name", "Package"), row["name"]))
    if "summary" in show:
        fields.append((("summary", "title", "short_description"), summary))
    if "body" in show and body:
        fields.append((("description", "text", "details"), body))
    if "depends" in show and row["depends"]:
        fields.append((("depends", "requires", "dependencies"), row["depends"][:12]))
    if "size" in show:
        fields.append((("installed_size_kb", "size_kb"), row["size"]))
    if "arch" in show:
        fields.append((("architecture", "arch"), row["arch"]))
    if "json" in show:
        value = {rng.choice(keys): value for keys, value in fields}
        return {rng.choice(("package", "item", "record")): value} if rng.random() < 0.1 else value
    if rng.random() < 0.3 or show & {"depends", "size", "arch"}:
        lines = []
        for keys, value in fields:
            key = keys[0].replace("_", " ").capitalize()
            lines.append(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
        return "\n".join(lines)
    values = [value for _, value in fields]
    if len(values) > 1 and "name" in show and rng.random() < 0.5:
        values[:2] = [f"{values[0]}{rng.choice((': ', ' - ', ' '))}{values[1]}"]
    return rng.choice(("\n\n", "\n", " ")).join(values)


def settle(rng, drawn):
    """Put the drawn questions into a record under ids that do not clash."""
    questions, expected, about = {}, {}, {}
    for key, question, answer, note in drawn:
        if rng.random() < 0.12:
            key = rng.choice(("q{}", "field_{}", "Q-{}")).format(len(questions) + 1)
        base, number = key, 2
        while key in questions:
            key, number = f"{base}_{number}", number + 1
        if rng.random() < 0.02:
            question["instructions"] = {"ask": question["instructions"]}
        questions[key], expected[key], about[key] = question, answer, note
    return questions, expected, about


def package_record(rng, pool, index=None):
    """A record about one package."""
    index = pool.draw(rng) if index is None else index
    row = pool.rows[index]
    language = "en"
    if len(row["texts"]) > 1 and rng.random() < 0.35:
        language = rng.choice([k for k in row["texts"] if k != "en"])
    show = {"body"} if rng.random() < 0.9 else {"name", "summary"}
    show |= {item for item, share in (
        ("name", 0.55), ("summary", 0.75), ("depends", 0.12), ("size", 0.08), ("arch", 0.05),
        ("json", 0.45), ("long", 0.05)) if rng.random() < share}
    if "body" in show and not row["texts"][language][1]:
        show |= {"summary", "name"}
    wanted = rng.choice((1, 2, 3, 3, 4, 4, 5, 6, 7))
    if language != "en" and rng.random() < 0.4:
        drawn = [ask_language(rng, language)]
    else:
        drawn = [ask_language(rng, language)] if rng.random() < 0.06 else []
    if "size" in show:
        drawn.append(ask_score(rng, pool, index, "size"))
    if "depends" in show and rng.random() < 0.6:
        drawn.append(ask_depends(rng, pool, index))
    if "name" not in show and rng.random() < 0.25:
        drawn.append(ask_match(rng, pool, index, "name", language))
    if "summary" not in show and "body" in show and rng.random() < 0.5:
        drawn.append(ask_match(rng, pool, index, "summary", language))
    drawn = [question for question in drawn if question]
    order = [("family", f) for f in labels.FAMILIES for _ in range(2)]
    order += [("proposition", p) for p in labels.PROPOSITIONS for _ in range(2)]
    order += [("score", "specialised"), ("score", "specialised")]
    order += [("score", "users")] if rng.random() < 0.3 else []
    rng.shuffle(order)
    for kind, item in order:
        if len(drawn) >= wanted:
            break
        asker = {"family": ask_family, "proposition": ask_proposition, "score": ask_score}[kind]
        question = asker(rng, pool, index, item)
        if question:
            drawn.append(question)
    if not drawn:
        drawn = [ask_language(rng, language)]
    rng.shuffle(drawn)
    state = make_state(rng, row, language, show)
    questions, expected, about = settle(rng, drawn)
    return {"state": state, "questions": questions, "expected": expected, "about": about,
            "package": row["name"], "language": language}


def list_record(rng, pool, items, with_body=None):
    """A record about a list of packages of one section, in one language; long on purpose."""
    section = rng.choice(sorted(labels.SECTIONS))
    chosen = pool.by_section.get(section, [])
    language = "en" if rng.random() < 0.7 else rng.choice(list(labels.LANGUAGES))
    chosen = [i for i in chosen if language in pool.rows[i]["texts"]]
    if len(chosen) < 3:
        return list_record(rng, pool, items, with_body)
    chosen = rng.sample(chosen, min(items, len(chosen)))
    show = {"name", "summary", "json"}
    if rng.random() < 0.5 if with_body is None else with_body:
        show |= {"body"}
    state = [make_state(rng, pool.rows[i], language, show) for i in chosen]
    if rng.random() < 0.4:
        state = "\n\n".join(json.dumps(item, ensure_ascii=False) for item in state)
    inside = [pool.rows[i]["name"] for i in chosen]
    drawn = []
    answer = rng.random() < 0.5
    absent = [pool.rows[pool.draw(rng)]["name"] for _ in range(6)]
    absent = [name for name in dict.fromkeys(absent) if name not in inside]
    name = rng.choice(inside if answer or not absent else absent)
    ask = rng.choice(("Is {} in the list?", "Does the state mention the package {}?",
                      "The list contains {}.")).format(name)
    question = noul_question(rng, ("listed", "contains", "has_it"), ask, name in inside)
    question[3].update(task="listed", asked=name)
    drawn.append(question)
    if absent:
        right = rng.choice(inside)
        values = [right, *absent[: rng.randrange(1, 4)]]
        rng.shuffle(values)
        question = {"type": "choice", "criteria": dict.fromkeys(values),
                    "instructions": rng.choice(("Which of these packages is in the list?",
                                                "Which name occurs in the state?"))}
        about = {"task": "member", "right": right, "classes": {v: v for v in values}}
        drawn.append((rng.choice(("member", "which_one")), question, right, about))
    family = labels.FAMILIES[0]
    wrong = [c for c in family.classes if c != section]
    asks = ("Which section do these packages belong to?", "What do the listed packages have in common?",
            "Choose the category of the listed packages.")
    question = choice_question(rng, family.classes, asks, family.ids, section, wrong)
    question[3]["task"] = "list section"
    drawn.append(question)
    drawn.append(ask_language(rng, language))
    drawn = rng.sample(drawn, rng.randrange(1, len(drawn) + 1))
    questions, expected, about = settle(rng, drawn)
    return {"state": state, "questions": questions, "expected": expected, "about": about,
            "package": inside[0], "language": language}


CHAT_NAMED = ("What is {}?", "Tell me about the package {}.", "What does {} do?", "Describe {}.")
CHAT_SUMMARY = ("Sum this up in one line:\n\n{}", "Give a short title for this text:\n\n{}",
                "Summarise: {}")


def chat_pair(rng, pool):
    """A user's message and its reply, for the language-model part of the training."""
    row = pool.rows[pool.draw(rng)]
    language = "en" if rng.random() < 0.7 else rng.choice(list(row["texts"]))
    summary, body = row["texts"][language]
    if body and rng.random() < 0.5:
        return rng.choice(CHAT_SUMMARY).format(trim(rng, body, False)), summary
    reply = summary if rng.random() < 0.4 or not body else f"{summary}\n\n{trim(rng, body, False)}"
    return rng.choice(CHAT_NAMED).format(row["name"]), reply


def training_item(rng, pool):
    """What one training example is: mostly package records, some lists, some chats."""
    roll = rng.random()
    if roll < 0.08:
        return "chat", chat_pair(rng, pool)
    if roll < 0.12:
        return "record", list_record(rng, pool, rng.choice((3, 4, 6, 8, 12)))
    if roll < 0.122:
        return "record", list_record(rng, pool, rng.choice((20, 30, 50)))
    return "record", package_record(rng, pool)
