"""What can be asked about a package, and how the package lists answer it.

A *family of classes* (`Family`) has named classes, each with the words that describe it, and a
function that reads the classes of a package from its section, debtags or dependencies. A package
may carry several classes of a family, or none known; a class outside `known` is never used as a
wrong answer. Nothing here looks at a description: labels come from the lists' own fields alone.
"""

from dataclasses import dataclass
from typing import Callable

# class: (human name, noun phrase, another noun phrase ...)
SECTIONS = {
    "admin": ("system administration", "a tool for administering a system", "something for managing machines, users, packages or services"),
    "comm": ("communication", "communication software for modems, fax or telephony", "a program for fax, phone or serial communication"),
    "database": ("databases", "a database server, client or tool", "software for storing and querying databases"),
    "debug": ("debug symbols", "debugging symbols", "extra symbols that only a debugger needs"),
    "devel": ("development tools", "a tool for software developers", "a compiler, build tool or other programming utility"),
    "doc": ("documentation", "documentation", "a manual, handbook or set of reference pages"),
    "editors": ("editors", "a text editor or an add-on for one", "software for editing text or office documents"),
    "electronics": ("electronics", "software for electronics and circuit design", "a tool for circuits, microcontrollers or chips"),
    "fonts": ("fonts", "a font or a set of fonts", "typefaces for screen or print"),
    "games": ("games", "a game", "a game, or data that a game needs", "software that people play for fun"),
    "gnome": ("GNOME desktop", "a part of the GNOME desktop", "software of the GNOME project"),
    "gnu-r": ("GNU R", "an extension of the R statistics language", "a package for statistics with R"),
    "gnustep": ("GNUstep", "a part of the GNUstep environment", "software of the GNUstep project"),
    "golang": ("Go packages", "source code of a Go library", "a package for programs written in Go"),
    "graphics": ("graphics", "software for images, drawing or 3D graphics", "a viewer, editor or converter for pictures"),
    "hamradio": ("amateur radio", "software for amateur radio", "a tool for ham radio operators"),
    "haskell": ("Haskell libraries", "a library for the Haskell language", "a package for Haskell programmers"),
    "httpd": ("web servers", "a web server or a module of one", "software that serves web pages"),
    "interpreters": ("interpreters", "an interpreter of a programming language", "the run-time of a scripting language"),
    "introspection": ("introspection data", "GObject introspection data", "type data that language bindings read at run time"),
    "java": ("Java libraries", "a library for the Java language", "a package for Java programmers"),
    "javascript": ("JavaScript libraries", "a JavaScript or Node.js module", "a library for JavaScript programmers"),
    "kde": ("KDE desktop", "a part of the KDE desktop", "software of the KDE project"),
    "kernel": ("kernel", "an operating system kernel or kernel modules", "software close to the kernel"),
    "libdevel": ("development libraries", "headers and static libraries for developers", "the files needed to compile programs against a library"),
    "libs": ("shared libraries", "a shared library that programs load at run time", "a run-time library"),
    "lisp": ("Lisp", "a package for the Lisp family of languages", "software for Common Lisp, Scheme or Emacs Lisp"),
    "localization": ("translations", "a language pack or translation", "translated messages and other localisation data"),
    "mail": ("mail", "software for electronic mail", "a mail server, mail client or mail filter"),
    "math": ("mathematics", "software for mathematics", "a tool for algebra, numerics or proofs"),
    "metapackages": ("metapackages", "a metapackage that only pulls in other packages", "an empty package that depends on a selection of others"),
    "net": ("networking", "networking software", "a network client, server or tool"),
    "news": ("usenet news", "software for Usenet news", "a news reader or news server"),
    "ocaml": ("OCaml libraries", "a library for the OCaml language", "a package for OCaml programmers"),
    "otherosfs": ("other systems", "software for running or reading another operating system", "an emulator or cross tool for other platforms"),
    "perl": ("Perl modules", "a module for the Perl language", "a library for Perl programmers"),
    "php": ("PHP libraries", "a library or extension for the PHP language", "a package for PHP programmers"),
    "python": ("Python modules", "a module for the Python language", "a library for Python programmers"),
    "ruby": ("Ruby libraries", "a library for the Ruby language", "a package for Ruby programmers"),
    "rust": ("Rust crates", "source code of a Rust crate", "a library for Rust programmers"),
    "science": ("science", "scientific software", "a program or data set for researchers"),
    "shells": ("shells", "a command shell or an add-on for one", "an interactive shell"),
    "sound": ("sound and music", "software for sound and music", "an audio player, recorder, synthesiser or mixer"),
    "tasks": ("tasks", "a task package that selects software for one purpose", "a selection of packages for one kind of user"),
    "tex": ("TeX", "a part of the TeX typesetting system", "software for LaTeX documents"),
    "text": ("text processing", "software that processes text", "a converter, formatter, dictionary or spell checker for text"),
    "utils": ("utilities", "a general utility", "a small all-purpose tool"),
    "vcs": ("version control", "a version control system or a tool for one", "software that tracks revisions of source code"),
    "video": ("video", "software for video", "a video player, recorder or converter"),
    "web": ("web software", "software for the World Wide Web", "a web browser, web application or tool for web sites"),
    "x11": ("X Window System", "a part of the X Window System, or a window manager", "software for graphical sessions under X"),
    "xfce": ("Xfce desktop", "a part of the Xfce desktop", "software of the Xfce project"),
}

ROLES = {
    "app-data": ("application data", "data files that one application needs", "support files of a program, with no program in them"),
    "debug-symbols": ("debug symbols", "debugging symbols", "symbols that only a debugger reads"),
    "devel-lib": ("development files", "headers and link files for building other software", "a library for developers to compile against"),
    "documentation": ("documentation", "documentation", "manuals, examples or reference pages"),
    "metapackage": ("metapackage", "a metapackage", "an empty package that only depends on others"),
    "plugin": ("plug-in", "a plug-in for another program", "an add-on that extends an existing application"),
    "program": ("program", "a program that users run", "an application, command or service"),
    "shared-lib": ("shared library", "a shared library", "code that other programs load at run time"),
}

LANGUAGES = {
    "en": ("English", "English text", "text written in English"),
    "de": ("German", "German text", "text written in German"),
    "fr": ("French", "French text", "text written in French"),
    "es": ("Spanish", "Spanish text", "text written in Spanish"),
    "it": ("Italian", "Italian text", "text written in Italian"),
    "ja": ("Japanese", "Japanese text", "text written in Japanese"),
    "pl": ("Polish", "Polish text", "text written in Polish"),
    "pt_BR": ("Portuguese", "Portuguese text", "text written in Brazilian Portuguese"),
    "ru": ("Russian", "Russian text", "text written in Russian"),
}

CODE = {
    "c": ("C", "software written in C, or for C programmers", "C code"),
    "c++": ("C++", "software written in C++, or for C++ programmers", "C++ code"),
    "go": ("Go", "software of the Go language", "Go code"),
    "haskell": ("Haskell", "software of the Haskell language", "Haskell code"),
    "java": ("Java", "software of the Java language", "Java code"),
    "javascript": ("JavaScript", "software of the JavaScript language", "JavaScript or Node.js code"),
    "lisp": ("Lisp", "software of the Lisp languages", "Lisp code"),
    "ocaml": ("OCaml", "software of the OCaml language", "OCaml code"),
    "perl": ("Perl", "software of the Perl language", "Perl code"),
    "php": ("PHP", "software of the PHP language", "PHP code"),
    "python": ("Python", "software of the Python language", "Python code"),
    "r": ("R", "software of the R language", "R code for statistics"),
    "ruby": ("Ruby", "software of the Ruby language", "Ruby code"),
    "rust": ("Rust", "software of the Rust language", "Rust code"),
    "shell": ("shell", "shell scripts", "software written in shell script"),
    "tcl": ("Tcl", "software of the Tcl language", "Tcl code"),
}

INTERFACES = {
    "commandline": ("command line", "a command-line tool", "a program run by typing commands"),
    "daemon": ("background service", "a daemon that runs in the background", "a server or service without a window"),
    "graphical": ("graphical", "a program with windows and a graphical interface", "desktop software used with a mouse"),
    "shell": ("shell", "a command shell", "an interactive command interpreter"),
    "text-mode": ("text mode", "a full-screen program in a text terminal", "a terminal program with menus or screens"),
    "web": ("web interface", "software used through a web browser", "a web application"),
}

USES = {
    "analysing": ("analysing", "software for analysing data", "a tool that studies or evaluates its input"),
    "browsing": ("browsing", "software for browsing", "a tool to look through documents, sites or files"),
    "chatting": ("chatting", "software for chatting with people", "a chat or instant messaging tool"),
    "checking": ("checking", "software for checking or verifying", "a tool that finds mistakes or tests something"),
    "comparing": ("comparing", "software for comparing", "a tool that shows differences"),
    "compressing": ("compressing", "software for compressing data", "a tool that makes files smaller"),
    "configuring": ("configuring", "software for configuring a system", "a tool that changes settings"),
    "converting": ("converting", "software for converting", "a tool that turns one format into another"),
    "downloading": ("downloading", "software for downloading", "a tool that fetches files from a network"),
    "driver": ("driver", "a driver for a device", "software that makes hardware work"),
    "editing": ("editing", "software for editing", "a tool to create and change documents"),
    "gameplaying": ("gaming", "software for playing games", "a game"),
    "learning": ("learning", "software for learning", "a program for pupils and students"),
    "login": ("login", "software for logging in", "a tool that opens user sessions"),
    "monitor": ("monitoring", "software for monitoring", "a tool that watches a system or network"),
    "organizing": ("organising", "software for organising data", "a tool that keeps collections, plans or notes in order"),
    "playing": ("media playing", "software that plays sound or video", "a media player"),
    "printing": ("printing", "software for printing", "a tool for printers"),
    "proxying": ("proxying", "a proxy or gateway", "software that forwards connections"),
    "scanning": ("scanning", "software for scanning", "a tool that probes networks, files or paper"),
    "searching": ("searching", "software for searching", "a tool that finds things"),
    "simulating": ("simulating", "software for simulation", "a simulator"),
    "storing": ("storing", "software for storing data", "a tool for backups, archives or file systems"),
    "synchronizing": ("synchronising", "software for synchronising", "a tool that keeps copies equal"),
    "text-formatting": ("text formatting", "software for formatting text", "a tool that lays out text"),
    "timekeeping": ("timekeeping", "software for keeping time", "a clock, timer or calendar"),
    "typesetting": ("typesetting", "software for typesetting", "a tool that prepares documents for print"),
    "viewing": ("viewing", "software for viewing", "a viewer"),
}

DATA = {
    "archive": ("archives", "software that works with archives", "a tool for zip, tar or similar files"),
    "audio": ("audio", "software that works with sound", "a tool for audio files or streams"),
    "db": ("databases", "software that works with databases", "a tool for stored tables and records"),
    "dictionary": ("dictionaries", "software that works with dictionaries", "a tool for word lists"),
    "file": ("files", "software that works with files of any kind", "a tool for handling files"),
    "font": ("fonts", "software that works with fonts", "a tool for typefaces"),
    "image": ("images", "software that works with images", "a tool for pictures or photos"),
    "logfile": ("log files", "software that works with log files", "a tool that reads system logs"),
    "mail": ("mail", "software that works with mail", "a tool for e-mail messages"),
    "network-traffic": ("network traffic", "software that works with network traffic", "a tool for packets on a network"),
    "pim": ("personal information", "software that works with contacts, dates and tasks", "a tool for personal information"),
    "software:package": ("software packages", "software that works with software packages", "a tool for packages of programs"),
    "software:source": ("source code", "software that works with source code", "a tool for program sources"),
    "text": ("text", "software that works with text", "a tool for plain or formatted text"),
    "video": ("video", "software that works with video", "a tool for films and clips"),
}

TOOLKITS = {
    "gtk": ("GTK", "software built with GTK", "a user of the GTK toolkit"),
    "ncurses": ("ncurses", "software built with ncurses", "a program drawn in a terminal with curses"),
    "qt": ("Qt", "software built with Qt", "a user of the Qt toolkit"),
    "sdl": ("SDL", "software built with SDL", "a user of the SDL multimedia layer"),
    "tk": ("Tk", "software built with Tk", "a user of the Tk toolkit"),
    "wxwidgets": ("wxWidgets", "software built with wxWidgets", "a user of the wxWidgets toolkit"),
    "xlib": ("plain X", "software that talks to X directly", "a user of plain Xlib"),
}

FIELDS = {
    "arts": ("arts", "software for the arts", "a tool for artists"),
    "astronomy": ("astronomy", "software for astronomy", "a tool for stars, planets or telescopes"),
    "biology": ("biology", "software for biology", "a tool for genes, proteins or species"),
    "chemistry": ("chemistry", "software for chemistry", "a tool for molecules and reactions"),
    "electronics": ("electronics", "software for electronics", "a tool for circuits"),
    "finance": ("finance", "software for finance", "a tool for money and accounts"),
    "geography": ("geography", "software for geography", "a tool for maps and places"),
    "linguistics": ("linguistics", "software for linguistics", "a tool for the study of language"),
    "mathematics": ("mathematics", "software for mathematics", "a tool for calculation and proof"),
    "medicine": ("medicine", "software for medicine", "a tool for doctors or medical images"),
    "physics": ("physics", "software for physics", "a tool for physicists"),
    "statistics": ("statistics", "software for statistics", "a tool for statistical analysis"),
}

CODE_SECTIONS = {
    "golang": "go", "gnu-r": "r", "haskell": "haskell", "java": "java", "javascript": "javascript",
    "lisp": "lisp", "ocaml": "ocaml", "perl": "perl", "php": "php", "python": "python",
    "ruby": "ruby", "rust": "rust",
}
CODE_TAGS = {"ecmascript": "javascript", "golang": "go", "scheme": "lisp", "elisp": "lisp"}
TOOLKIT_DEPENDS = {
    "libgtk-3-0": "gtk", "libgtk2.0-0": "gtk", "libgtk-4-1": "gtk", "libqt5widgets5": "qt",
    "libqt6widgets6": "qt", "libncurses6": "ncurses", "libncursesw6": "ncurses", "tk": "tk",
    "libsdl2-2.0-0": "sdl", "libsdl1.2debian": "sdl", "libwxgtk3.2-1": "wxwidgets",
}
WINDOW_TOOLKITS = {"gtk", "qt", "sdl", "tk", "wxwidgets", "xlib"}
LIBRARY_TAGS = {"role::shared-lib", "role::devel-lib", "devel::library"}
GRAPHICAL_TAGS = {"interface::x11", "interface::graphical", "interface::3d", "x11::application"}
PLAIN_TAGS = {"interface::commandline", "interface::daemon", "interface::text-mode"}
NETWORK_FACETS = {"network", "protocol", "web", "mail"}
NETWORK_TAGS = {"interface::web", "use::browsing", "use::chatting", "use::downloading",
                "use::proxying", "use::transmission", "works-with::network-traffic"}
NETWORK_SECTIONS = {"comm", "httpd", "mail", "net", "news", "web"}
SUBJECT_FACETS = {"accessibility", "admin", "biology", "culture", "field", "game", "hardware",
                  "mail", "network", "office", "protocol", "science", "security", "sound", "use",
                  "web", "works-with", "works-with-format"}


def facet(row, name, classes):
    """The classes of a debtags facet that a package carries; `a::b:c` counts as `a::b` too."""
    values = {t.split("::")[1] for t in row["tags"] if t.startswith(name + "::")}
    values |= {v.split(":")[0] for v in values}
    return {v for v in values if v in classes}


def section_of(row):
    return {row["section"]} & set(SECTIONS)


def role_of(row):
    return facet(row, "role", ROLES)


def code_of(row):
    if row["section"] in CODE_SECTIONS:
        return {CODE_SECTIONS[row["section"]]}
    values = {t.split("::")[1] for t in row["tags"] if t.startswith("implemented-in::")}
    values |= {t.split("lang:")[1] for t in row["tags"] if t.startswith("devel::lang:")}
    return {CODE_TAGS.get(v, v) for v in values} & set(CODE)


def interface_of(row):
    found = facet(row, "interface", INTERFACES)
    return found | ({"graphical"} if GRAPHICAL_TAGS & set(row["tags"]) else set())


def toolkit_of(row):
    found = facet(row, "uitoolkit", TOOLKITS)
    return found | {TOOLKIT_DEPENDS[d] for d in row["depends"] if d in TOOLKIT_DEPENDS}


@dataclass(frozen=True)
class Family:
    """Classes with their words, and the classes of a package; `asks` are instructions for a choice."""

    name: str
    classes: dict
    of: Callable
    asks: tuple
    ids: tuple


FAMILIES = (
    Family("section", SECTIONS, section_of, (
        "Which section of the archive does this package belong to?",
        "Choose the section that fits this package best.",
        "Where would you file this software?",
        "Pick the category of the package described in the state.",
        "What kind of software is this?",
        "Classify the package.",
        "Sort this package into one of the shelves below.",
        "Select the most fitting topic for the described software.",
    ), ("section", "category", "topic", "kind", "shelf")),
    Family("role", ROLES, role_of, (
        "What role does the package play?",
        "What does this package contain?",
        "What is inside the package?",
        "Pick the role that describes the package.",
        "Is this a program, a library, documentation or something else?",
        "Which of these describes the contents of the package?",
    ), ("role", "contents", "package_role", "part")),
    Family("code", CODE, code_of, (
        "Which programming language does the package belong to?",
        "What language is this software written in or made for?",
        "Choose the programming language.",
        "For programmers of which language is this, or in which is it written?",
        "Name the language ecosystem of this package.",
    ), ("language", "programming_language", "ecosystem", "code")),
    Family("interface", INTERFACES, interface_of, (
        "How does one use this software?",
        "Which interface does the program offer?",
        "What kind of user interface does it have?",
        "Choose the way people interact with this program.",
    ), ("interface", "ui", "how_used")),
    Family("use", USES, lambda row: facet(row, "use", USES), (
        "What is this software for?",
        "Which activity does the software serve?",
        "Choose the main use of this package.",
        "What would a user do with it?",
        "Pick the purpose of the described software.",
    ), ("use", "purpose", "activity")),
    Family("data", DATA, lambda row: facet(row, "works-with", DATA), (
        "What kind of data does it work with?",
        "Which data does this software handle?",
        "Choose the kind of content the software deals with.",
        "What does the program take as its material?",
    ), ("data", "works_with", "content")),
    Family("toolkit", TOOLKITS, toolkit_of, (
        "Which user interface toolkit does it use?",
        "What toolkit is the software built with?",
        "Choose the toolkit.",
    ), ("toolkit", "ui_toolkit")),
    Family("field", FIELDS, lambda row: facet(row, "field", FIELDS), (
        "Which field of knowledge is it for?",
        "Choose the subject area of the software.",
        "People of which field would use it?",
    ), ("field", "subject", "domain")),
)


def library_of(row):
    """True: tagged or filed as a library. False: tagged with a role that is none. None: not known."""
    tags = set(row["tags"])
    if tags & LIBRARY_TAGS or row["section"] in ("libs", "libdevel"):
        return True
    return False if role_of(row) - {"devel-lib", "shared-lib"} else None


def desktop_of(row):
    """True: a graphical tag or a windowing toolkit in a program. False: another interface alone."""
    tags = set(row["tags"])
    if library_of(row) is not False:
        return None
    if tags & GRAPHICAL_TAGS or (toolkit_of(row) & WINDOW_TOOLKITS and "role::program" in tags):
        return True
    return False if tags & PLAIN_TAGS else None


def network_of(row):
    """True: a network tag. False: a program with a use or works-with tag, none of the network."""
    tags = set(row["tags"])
    facets = {t.split("::")[0] for t in tags}
    if tags & NETWORK_TAGS or facets & NETWORK_FACETS:
        return True
    described = "role::program" in tags and facets & {"use", "works-with"}
    return False if described and row["section"] not in NETWORK_SECTIONS else None


def game_of(row):
    """True: section games or a game tag. False: any other package with a role tag."""
    if row["section"] == "games" or any(t.startswith("game::") for t in row["tags"]):
        return True
    return False if row["tags"] and "use::gameplaying" not in row["tags"] else None


def documentation_of(row):
    """True: section doc or tagged so. False: another role and another section."""
    if row["section"] == "doc" or "role::documentation" in row["tags"]:
        return True
    return False if role_of(row) else None


def developer_of(row):
    """True: for people who write software (section or tags). False: filed and tagged otherwise."""
    tags = set(row["tags"])
    if row["section"] in {"devel", "libdevel", *CODE_SECTIONS} or "role::devel-lib" in tags:
        return True
    if any(t.startswith("devel::") for t in tags) or row["section"] in ("libs", "doc", "debug"):
        return None
    return False if tags else None


# name: (label function, question ids, (instruction, answer is inverted) ...)
PROPOSITIONS = {
    "library": (library_of, ("is_library", "library", "lib"), (
        ("Is this package a library?", False),
        ("Is it a library?", False),
        ("Does the package provide a library for other programs?", False),
        ("The package is a library rather than a program for end users.", False),
        ("Would other software link against or load this package?", False),
        ("This package is not a library.", True),
    )),
    "desktop": (desktop_of, ("desktop", "is_desktop", "needs_display", "graphical"), (
        ("Is this software for a desktop?", False),
        ("Does the program have a graphical user interface?", False),
        ("Does it open windows on a screen?", False),
        ("The program is meant for a graphical desktop.", False),
        ("Does one need a graphical display to use it?", False),
        ("Can it be used without a graphical display?", True),
    )),
    "network": (network_of, ("network", "needs_network", "online"), (
        ("Does this software need a network?", False),
        ("Does it use the network?", False),
        ("Is the software about networks, mail or the web?", False),
        ("The software talks to other machines or services over a network.", False),
        ("Does it work entirely offline?", True),
    )),
    "game": (game_of, ("is_game", "game", "for_fun"), (
        ("Is this a game?", False),
        ("Is the package a game or a part of one?", False),
        ("The package belongs to a game.", False),
        ("Would people install it to play?", False),
    )),
    "documentation": (documentation_of, ("is_documentation", "docs", "manual"), (
        ("Is this documentation?", False),
        ("Does the package consist of documentation?", False),
        ("The package holds manuals or reference pages rather than software.", False),
    )),
    "developer": (developer_of, ("for_developers", "developer", "programmers"), (
        ("Is it meant for programmers?", False),
        ("Is this package for people who write software?", False),
        ("Mainly software developers would install it.", False),
        ("Is it for ordinary users rather than programmers?", True),
    )),
}

# A score's levels are fixed by numbers of the package lists; their words vary.
SPECIALISED_BOUNDS = (50, 120, 300)  # packages that share the rarest subject tag
USERS_BOUNDS = (1, 3, 10)  # families that depend on or recommend the package
SIZE_BOUNDS = (100, 1000, 10000)  # installed KiB

SCORES = {
    "specialised": (
        ("specialised", "how_specialised", "specialisation", "niche"),
        ("How specialised is this software?",
         "Rate how narrow the subject of this package is.",
         "Is its subject common or rare?",
         "How special is the purpose of the package?"),
        (("Its subject is shared by very many packages.", "Its subject is fairly common.",
          "Its subject is rather special.", "Its subject is very special."),
         ("Common", "Fairly common", "Special", "Very special"),
         ("For everybody", "For many users", "For few users", "For specialists only")),
    ),
    "users": (
        ("depended_on", "importance", "reverse_dependencies", "relied_on"),
        ("How much other software relies on this package?",
         "How many other projects depend on it?",
         "Rate how widely the package is used by other packages."),
        (("No other software relies on it.", "One or two others rely on it.",
          "Several others rely on it.", "Very many others rely on it."),
         ("None", "One or two", "Several", "Ten or more")),
    ),
    "size": (
        ("size", "installed_size", "how_large"),
        ("How large is the package once installed?", "Rate its installed size.",
         "How much disk does it take?"),
        (("Below 100 KB", "100 KB to 1 MB", "1 MB to 10 MB", "More than 10 MB"),
         ("Tiny: under 100 kilobytes", "Small: under 1000 kilobytes",
          "Medium: under 10000 kilobytes", "Large: 10000 kilobytes or more")),
    ),
}


def subject_counts(rows):
    """How many packages carry each subject tag."""
    counts = {}
    for row in rows:
        for tag in row["tags"]:
            if tag.split("::")[0] in SUBJECT_FACETS:
                counts[tag] = counts.get(tag, 0) + 1
    return counts


def level(value, bounds):
    """The number of bounds at or below the value."""
    return sum(value >= bound for bound in bounds)


def specialised_of(row, counts):
    """0 (common) to 3 (very special) by the rarest subject tag; None without any."""
    found = [counts[t] for t in row["tags"] if t in counts]
    return len(SPECIALISED_BOUNDS) - level(min(found), SPECIALISED_BOUNDS) if found else None
