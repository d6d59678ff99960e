"""What on_a_card.py found, as a table, and as the profile and the page of the repository."""

import json
import os
import shutil

PAGE = os.path.join("docs", "calibration.md")
PROFILES = os.path.join("model_specs", "devices", "measured")
BEGIN, END = "<!-- cards: begin -->\n", "<!-- cards: end -->\n"


def gib(count):
    return "%.2f GiB" % (count / 2**30)


def cell(predicted, measured):
    if measured is None:
        return "%s / -" % gib(predicted)
    off = (measured - predicted) / predicted if predicted else 0.0
    return "%s / %s (%+.2f %%)" % (gib(predicted), gib(measured), 100 * off)


def level_of(compared, rank, name):
    return next((r for r in compared["ranks"][rank]["levels"] if r["name"] == name), None)


def seconds_words(seconds):
    return "-" if seconds is None else "%.0f ms" % (1000 * seconds)


def job_line(row):
    cells = [row["job"] if row["ranks"] == 1 else "%s, %d cards" % (row["job"], row["ranks"])]
    compared = row.get("compared")
    for name in ("allocated", "reserved", "device"):
        worst = None
        for rank in range(len(compared["ranks"]) if compared else 0):
            level = level_of(compared, rank, name)
            if level and (worst is None or abs((level["measured_bytes"] or 0) - level["predicted_bytes"])
                          > abs((worst["measured_bytes"] or 0) - worst["predicted_bytes"])):
                worst = level
        cells.append(cell(worst["predicted_bytes"], worst["measured_bytes"]) if worst else "-")
    confirm = row.get("confirm")
    cells.append(("confirmed" if confirm["confirmed"] else "OFF: " + "; ".join(confirm["because"])) if confirm
                 else row.get("confirm_words", row.get("note", "-")))
    if compared:
        last = [r["step_seconds"][-1] for r in compared["ranks"] if r["step_seconds"]]
        cells.append("%s / %s" % (seconds_words(compared["predicted_step_seconds"]),
                                  seconds_words(max(last) if last else None)))
    else:
        cells.append("-")
    return "| " + " | ".join(cells) + " |"


def table(rows, head):
    lines = [head, "",
             "| job | allocated, predicted / measured | reserved | device | replay of the plan | step |",
             "| --- | --- | --- | --- | --- | --- |"]
    lines += [job_line(row) for row in rows if row["job"] != "above-capacity"]
    for row in rows:
        if row.get("without_cudnn"):
            lines += ["", "%s without cuDNN's attention: %s" % (
                row["job"], "as predicted" if row["without_cudnn"]["right"] else "off as well")]
        if row["job"] == "above-capacity":
            lines += ["", "3 % above the card's capacity: " + (
                "refused by the plan and, before anything was allocated, by confirm"
                if row["refused_by_plan"] and row["refused_by_confirm"] else row.get("note") or "NOT REFUSED")
                + {True: "; the real program runs out of memory", False: "; THE REAL PROGRAM RUNS"}.get(
                    row.get("real_program_fails"), "")]
    return "\n".join(lines) + "\n"


def row_right(row):
    if "right" in row and not row["right"]:
        return False
    if row["job"] == "above-capacity":
        return True
    if not row["fits"]:
        return False
    compared = row.get("without_cudnn") or row.get("compared")
    return (bool(row.get("confirm") and row["confirm"]["confirmed"])
            and (compared is None or compared["right"]) and row.get("trial") != "failed")


def with_section(page, title, text):
    """The page with one card's section; the sections of other cards and days stay. None: it has no place."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        return None
    before, rest = page.split(BEGIN)
    inside, after = rest.split(END)
    sections = [s for s in inside.split("### ")[1:] if s.split("\n", 1)[0] != title]
    sections.append(title + "\n\n" + text.strip() + "\n")
    return before + BEGIN + "".join("### " + s.strip() + "\n\n" for s in sections).rstrip("\n") + "\n" + END + after


def write(path, text):
    """The whole file or none of it."""
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


def publish(root, folder):
    """The profile and the table of a folder of results into the repository; words for the person."""
    with open(os.path.join(folder, "summary.json")) as file:
        summary = json.load(file)
    if summary["stand_in"]:
        return "nothing of a stand-in is written into the repository"
    words = []
    name = "%s-%s" % (summary["device"], summary["date"])
    profile = os.path.join(folder, "profile.yaml")
    if os.path.exists(profile):
        os.makedirs(os.path.join(root, PROFILES), exist_ok=True)
        to = os.path.join(root, PROFILES, name + ".yaml")
        shutil.copyfile(profile, to)
        words.append("the profile is " + to)
    if summary["missing"]:
        words.append("%s is as it was, since this was not all: %s" % (PAGE, "; ".join(summary["missing"])))
        return "\n".join(words)
    path = os.path.join(root, PAGE)
    with open(path) as file:
        page = with_section(file.read(), name, summary["table"])
    if page is None:
        words.append("%s has no place for the table, which is table.md" % path)
    else:
        write(path, page)
        words.append("%s has the table" % path)
    return "\n".join(words)
