"""A reader of the LaTeX that tables use: it knows the rules of TeX for special characters and refuses all else."""

import re

SIGNS = {"textasciitilde": "~", "textasciicircum": "^", "textbackslash": "\\", "textless": "<", "textgreater": ">"}
SIGNS |= {"textbar": "|", "downarrow": "↓", "uparrow": "↑"}
FONTS = {"textbf": "**", "scriptsize": "", "footnotesize": ""}
TOKEN = re.compile(r"\\([A-Za-z]+) ?|\\(.)|(.)", re.DOTALL)


def read_table(text: str) -> tuple[list[list[str]], list[str]]:
    """The cells of the rows of a `tabular`, bold ones between `**`, and the lines of the small print below."""
    assert text.startswith("% Requires \\usepackage{booktabs}\n")
    found = re.fullmatch(
        r"\\begin\{tabular\}\{(lr*)\}\n(.*)\\end\{tabular\}\n\\par\\smallskip\n"
        r"\\begin\{minipage\}\{\\linewidth\}\n\\footnotesize\n(.*)\\end\{minipage\}\n",
        text.partition("\n")[2],
        re.DOTALL,
    )
    assert found is not None
    columns, body, notes = found.groups()
    body = re.sub(r"\\(toprule|midrule|bottomrule)\n|\\cmidrule\(lr\)\{\d+-\d+\}\n?", "", body)
    assert body.endswith("\\\\\n")
    rows = []
    for line in body[:-3].split("\\\\\n"):
        assert not re.match(r"\s*[\[*]", line), "TeX would read this as the argument of the line's end"
        cells = []
        for cell in re.split(r"(?<!\\)&", line):
            span = re.match(r"\s*\\multicolumn\{(\d+)\}\{c\}\{(.*)\}\s*$", cell)
            cells += [plain(span[2])] * int(span[1]) if span else [plain(cell)]
        assert len(cells) == len(columns)
        rows.append(cells)
    return rows, [plain(line) for line in notes.removesuffix("\\par\n").split("\\par\n")]


def plain(text: str) -> str:
    """What TeX prints."""
    shown, depth, bold = [], 0, []
    text = text.replace("$", "", 2) if re.search(r"(?<!\\)\$\\(down|up)arrow\$", text) else text
    assert "''" not in text
    assert "``" not in text
    for command, escaped, character in TOKEN.findall(text):
        if command:
            assert command in SIGNS or command in FONTS, command
            shown.append(SIGNS.get(command, FONTS.get(command, "")))
            if command == "textbf":
                bold.append(depth)
        elif escaped:
            assert escaped in "&%$#_{}", escaped
            shown.append(escaped)
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            assert depth >= 0
            if bold and bold[-1] == depth:
                bold.pop()
                shown.append("**")
        else:
            assert character not in "&%$#_^~\\<>|", f"{character} is special in {text}"
            shown.append(character)
    assert depth == 0
    return " ".join("".join(shown).split())
