#!/usr/bin/env python3
"""Everything that has to be done on a card, in one go; results in a folder of its own.

    calibrate/on_a_card.py --dry-run             says what would run, bytes and seconds; needs no card
    calibrate/on_a_card.py                       builds, measures, confirms, tries, compares
    calibrate/on_a_card.py --python ~/v/bin/python --quick
    calibrate/on_a_card.py --publish FOLDER      the profile and the page from results of another machine

Measured: `calibrate run` (its profile is what the plans then use). For each job of calibrate/jobs, and
those of calibrate/jobs/pair where there are two cards: plan, confirm, smoke, the real program for three
steps, compare. Then a job within 3 % of the card's capacity, and one 3 % above it that has to be
refused; compute-sanitizer over the kernels where it is found. At the end a table, the profile under
model_specs/devices/measured, and docs/calibration.md. Ctrl-C ends it with what there is until then.
Exit code: 0 all is as predicted, 1 something is off or failed, 2 bad input, 4 waived: no device is
there, 130 after Ctrl-C. Needs Python 3.8 and nothing else; the real programs need PyTorch,
transformers, peft and torchvision in the Python of --python, and are left out where it has none.
"""

import argparse
import glob
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time

import card_report
from card_report import gib
from card_run import LIMITS, Run, last_line, quiet, read_json, stop

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
JOBS = os.path.join(ROOT, "calibrate", "jobs")
TRIAL = os.path.join(ROOT, "calibrate", "trial", "trial.py")
NEAR = "llama-3.2-1b-full"  # made longer until it fills the card
LONGEST = 1 << 16  # sixteens of tokens
NEAR_SHARES, ABOVE_SHARES = (0.972, 0.985), (1.03, 1.05)  # of what the card has for a program
TRIAL_SECONDS = 90  # a guess for one job: loading the libraries, building the model, three steps
SANITIZER_SECONDS = 180  # a guess: three tools over kernels of small sizes
IN_USE = 2 << 30  # bytes; more than contexts take: somebody else works on the card
ROOM = 4 << 30  # bytes of the disk that results and exported programs may take


def jobs_of(arguments, devices):
    files = sorted(glob.glob(os.path.join(JOBS, "*.yaml")))
    if devices >= 2:
        files += sorted(glob.glob(os.path.join(JOBS, "pair", "*.yaml")))
    found = [(os.path.splitext(os.path.basename(f))[0], f, 2 if os.path.basename(os.path.dirname(f)) == "pair" else 1)
             for f in files]
    unknown = set(arguments.jobs) - {name for name, _, _ in found}
    if unknown:
        stop(2, "unknown job %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(n for n, _, _ in found)))
    return [job for job in found if not arguments.jobs or job[0] in arguments.jobs]


def plan_words(run, device, count, job_file, more=()):
    words = [run.shardfit, "plan", job_file, "--on", device if count == 1 else "%dx%s" % (count, device)]
    if run.profile:
        words += ["--device-profile", run.profile]
    return words + ["--json"] + list(more)


def read_plan(text):
    """A plan from its JSON; None where it is none, such as JSON that says what is wrong."""
    plan = read_json(text)
    return plan if isinstance(plan, dict) and plan.get("options") else None


def needed_share(run, device, sequence):
    """Verdict, and bytes needed as a share of what the card has for the program."""
    words = plan_words(run, device, 1, os.path.join(JOBS, NEAR + ".yaml"),
                       ["--micro-batch", "1", "--sequence", str(sequence)])
    _, out, err = quiet(words)
    plan = read_plan(out)
    if plan is None:
        stop(2, err.strip() or "no plan of " + NEAR)
    option = plan["options"][0]
    gpu = option["gpus"][0]
    return option["verdict"], gpu["needed_bytes"] / gpu["budget_bytes"]


def sequence_within(run, device, least, most):
    """A sequence (a multiple of 16) whose program needs a share of the card between those; its verdict
    and share. Where none does, the last one tried."""
    low, at, high = 0, 1024, None
    while True:
        verdict, share = needed_share(run, device, 16 * at)
        if least <= share <= most or at >= LONGEST or high == low + 1:
            return 16 * at, verdict, share
        if share < least:
            low = at
        else:
            high = at
        at = 2 * low if high is None else max((low + high) // 2, 1)


def start_trial(run, plan, out, ranks, more=()):
    command = shlex.split(run.arguments.python)
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return command + [TRIAL, plan, "--out", out] + shlex.split(run.arguments.trial_options) + list(more)


def compare(run, name, plan, trial):
    code, out = run.do(name + ".compare.json", [run.shardfit, "compare", plan, trial, "--json"], (0, 1))
    return read_json(out) if code in (0, 1) else None


def try_job(run, name, plan, ranks, row):
    """The real program, and its comparison; without cuDNN's attention where that explains a difference."""
    trial = run.path(name + ".trial.json")
    code, _ = run.do(name + ".trial.log", start_trial(run, plan, trial, ranks), limit=LIMITS["trial"])
    row["trial"] = "done" if code == 0 else "failed"
    if not os.path.exists(trial):
        return
    row["compared"] = compare(run, name, plan, trial)
    if not row["compared"] or row["compared"]["right"] or "--no-cudnn-attention" in run.arguments.trial_options:
        return
    again = name + ".no-cudnn"
    code, _ = run.do(again + ".trial.log",
                     start_trial(run, plan, run.path(again + ".trial.json"), ranks, ["--no-cudnn-attention"]),
                     limit=LIMITS["trial"])
    if code == 0:
        row["without_cudnn"] = compare(run, again, plan, run.path(again + ".trial.json"))


def do_job(run, device, name, job_file, ranks, more=(), trial=True):
    row = {"job": name, "ranks": ranks}
    programs = run.path(name)
    os.makedirs(programs, exist_ok=True)
    code, out = run.do(name + ".plan.json", plan_words(run, device, ranks, job_file,
                                                       list(more) + ["--export-program", programs]), (0, 1))
    row["fits"] = code == 0
    if code != 0:
        row["note"] = "does not fit" if code == 1 else "no plan"
        return row
    plan = os.path.join(programs, "plan.json")
    with open(plan, "w") as file:
        file.write(out)
    code, out = run.calibrate(name + ".confirm.json",
                              ["confirm", plan, "--json", "--gpu-budget", run.arguments.gpu_budget], expected=(0, 1),
                              limit=LIMITS["other"] + 2 * budget_seconds(run.arguments.gpu_budget))
    row["confirm"] = read_json(out)
    if row["confirm"] is None or "confirmed" not in row["confirm"]:
        refused = (row["confirm"] or {}).get("refused")
        row["confirm_words"] = "REFUSED: " + refused if refused else "exit %d, see the step" % code
        row["confirm"] = None
    code, out = run.calibrate(name + ".smoke.json", ["smoke", plan, "--json"])
    row["smoke"] = read_json(out)
    if trial and run.trial_missing is None:
        try_job(run, name, plan, ranks, row)
    for exported in glob.glob(os.path.join(programs, "*.program")):
        os.remove(exported)  # large, and made again from the plan
    return row


def do_near(run, device):
    """The job that fills the card, and the one that does not fit any more."""
    rows = []
    sequence, verdict, share = sequence_within(run, device, *NEAR_SHARES)
    print("  near capacity: %d tokens need %.1f %% of the card (%s)" % (sequence, 100 * share, verdict))
    row = do_job(run, device, "near-capacity", os.path.join(JOBS, NEAR + ".yaml"), 1,
                 ["--micro-batch", "1", "--sequence", str(sequence)])
    row["share"] = share
    row["right"] = row["fits"] and share >= 0.97
    rows.append(row)
    sequence, _, above = sequence_within(run, device, *ABOVE_SHARES)
    programs = run.path("above-capacity")
    os.makedirs(programs, exist_ok=True)
    words = plan_words(run, device, 1, os.path.join(JOBS, NEAR + ".yaml"),
                       ["--micro-batch", "1", "--sequence", str(sequence), "--export-program", programs])
    code, out = run.do("above-capacity.plan.json", words, (1,))
    row = {"job": "above-capacity", "ranks": 1, "share": above, "fits": code == 0, "refused_by_plan": code == 1}
    if code not in (0, 1):
        row["note"] = "no plan"
    plan = os.path.join(programs, "plan.json")
    with open(plan, "w") as file:
        file.write(out)
    option = (read_plan(out) or {"options": [{"name": device}]})["options"][0]["name"]
    code, out = run.calibrate("above-capacity.confirm.txt", ["confirm", plan, "--option", option], expected=(1,))
    row["refused_by_confirm"] = code == 1 and "nothing was allocated" in out
    row["right"] = row["refused_by_plan"] and row["refused_by_confirm"]
    if run.trial_missing is None:  # the real program has to fail, too
        code, _ = run.do("above-capacity.trial.log",
                         start_trial(run, plan, run.path("above-capacity.trial.json"), 1, ["--option", option]), (1,),
                         limit=LIMITS["trial"])
        row["real_program_fails"] = code == 1
        row["right"] = row["right"] and code == 1
    for exported in glob.glob(os.path.join(programs, "*.program")):
        os.remove(exported)
    return rows + [row]


def sanitize(run, device):
    """compute-sanitizer over every kernel of the program."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        return "left out: compute-sanitizer is not there"
    programs = run.path("sanitizer")
    os.makedirs(programs, exist_ok=True)
    _, out = run.do("sanitizer.plan.json", plan_words(run, device, 1, os.path.join(JOBS, "gpt2.yaml"),
                                                      ["--export-program", programs]))
    plan = os.path.join(programs, "plan.json")
    with open(plan, "w") as file:
        file.write(out)
    rows = ["modules", "launch", "memory-bound", "attention", "device-copy", "gemm-batched"]
    words = []
    for kind in ("memcheck", "racecheck", "synccheck"):
        under = (shlex.split(run.arguments.under) + [tool, "--tool", kind, "--error-exitcode", "9"]
                 + [os.path.join(run.arguments.build, "shardfit-calibrate")])
        codes = [run.do("sanitizer-%s-%s.txt" % (kind, words_of[0]), under + words_of, limit=LIMITS["sanitizer"])[0]
                 for words_of in (["smoke", plan], ["run", "--quick", "--only"] + rows)]
        words.append("%s %s" % (kind, "clean" if codes == [0, 0] else "exit %s" % codes))
    shutil.rmtree(programs, ignore_errors=True)
    return ", ".join(words)


def dry_run(run, arguments, machine):
    """Bytes and seconds of every step, from the programs' own dry runs."""
    device, devices = arguments.on or "h200", arguments.cards
    if machine["devices"]:
        devices = len(machine["devices"])
        device = arguments.on or machine["devices"][0]["catalogue"] or "h200"
    else:
        print("waived here: " + machine["waived"])
    total = 0.0
    print("would run on %d x %s:" % (devices, device))
    for name, words in (("calibrate run --quick", ["--quick"]), ("calibrate run", [])):
        if arguments.quick and not words:
            continue
        code, out, err = quiet(run.calibrate_program + ["run", "--dry-run", "--json", "--on",
                                                        "%dx%s" % (devices, device)] + words)
        found = read_json(out)
        if code != 0 or found is None:
            stop(2, err.strip())
        print("  %-44s%6.0f s, up to %s" % (name, found["seconds"], gib(max(b["bytes"] for b in found["benchmarks"]))))
        total += found["seconds"]
    run.profile = ""
    missing = find_trial_missing(arguments)
    no_trial = missing is not None and machine["devices"]  # elsewhere another Python may have it
    for name, job_file, ranks in jobs_of(arguments, devices):
        code, out, err = quiet(plan_words(run, device, ranks, job_file))
        plan = read_plan(out)
        if plan is None:
            stop(2, err.strip())
        option = plan["options"][0]
        steps = 3 * (option["step_seconds"] or 0)
        seconds = min(2 * steps + 10, budget_seconds(arguments.gpu_budget)) + (
            0 if arguments.no_trial or no_trial else TRIAL_SECONDS)
        print("  %-44s%6.0f s, device %s on each of %d: %s" % (
            name, seconds, gib(option["gpus"][0]["device_bytes"]), ranks, option["verdict"]))
        total += seconds
    if not arguments.no_near:
        for name, least, most in (("near-capacity", *NEAR_SHARES), ("above-capacity", *ABOVE_SHARES)):
            sequence, verdict, share = sequence_within(run, device, least, most)
            print("  %-44s%6.0f s, %s with %d tokens, %.1f %% of the card: %s" % (
                name, TRIAL_SECONDS, NEAR, sequence, 100 * share, verdict))
            total += TRIAL_SECONDS
    if not arguments.device_profile:
        print("  %-44s%6.0f s, a guess; left out where it is not there" % ("compute-sanitizer", SANITIZER_SECONDS))
        total += SANITIZER_SECONDS
    print("  in all some %.0f minutes beside the build, of it guesses: %d s for each real program" % (
        total / 60 + 1, TRIAL_SECONDS))
    print("  a step that hangs is ended after 5 minutes, a real program after %d; up to %s of disk" % (
        LIMITS["trial"] / 60, gib(ROOM)))
    if missing is not None:
        print("  THE REAL PROGRAMS WOULD BE LEFT OUT: %s (--python says where they are)" % missing)


def budget_seconds(text):
    try:
        seconds = float(text[:-1]) if text.endswith("s") else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 86400:
        stop(2, "--gpu-budget: '%s' is no number of seconds above 0 and within a day, such as 60s" % text)
    return seconds


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="folder of results; default calibrate-results/DATE-DEVICE")
    parser.add_argument("--dry-run", action="store_true", help="say what would run, bytes and seconds")
    parser.add_argument("--quick", action="store_true", help="only the quick measurements")
    parser.add_argument("--device-profile", default="", help="measured before; nothing is measured anew")
    parser.add_argument("--jobs", nargs="*", default=[], metavar="NAME", help="of calibrate/jobs; default all")
    parser.add_argument("--no-trial", action="store_true", help="leave the real programs out")
    parser.add_argument("--no-near", action="store_true", help="leave the jobs near capacity out")
    parser.add_argument("--gpu-budget", default="60s", help="of each confirm; default 60s")
    parser.add_argument("--python", default="python3", help="the Python of the real programs, as a command")
    parser.add_argument("--trial-options", default="", help="given to calibrate/trial/trial.py")
    parser.add_argument("--on", help="the catalogue's name of the card; default as it is found there")
    parser.add_argument("--cards", type=int, default=1, help="of a dry run without one; default 1")
    parser.add_argument("--under", default="", help="a command that calibrate runs under, such as a stand-in")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="folder of the programs")
    parser.add_argument("--publish", metavar="FOLDER", help="only: results of a card into this repository")
    parser.add_argument("--root", default=ROOT, help="repository that profile and page go to; default this one")
    parser.add_argument("--no-build", action="store_true", help="they are built")
    arguments = parser.parse_args()
    budget_seconds(arguments.gpu_budget)
    arguments.python = python_words(arguments)
    return arguments


def python_words(arguments):
    """--python as a command whose program is there."""
    try:
        words = shlex.split(arguments.python)
    except ValueError as error:
        stop(2, "--python: %s" % error)
    words[:1] = [os.path.expanduser(word) for word in words[:1]]
    if not (arguments.no_trial or arguments.publish) and not (words and shutil.which(words[0])):
        stop(2, "--python: '%s' is no program here; --no-trial leaves the real programs out" % arguments.python)
    return " ".join(shlex.quote(word) for word in words)


def find_trial_missing(arguments):
    """Why the real programs cannot run; None where they can."""
    if arguments.no_trial:
        return "--no-trial"
    code, _, err = quiet(shlex.split(arguments.python) + ["-c", "import torch, transformers, peft, torchvision"])
    return None if code == 0 else last_line(err)


def profile_name(path):
    """The device's name in its file."""
    try:
        with open(path) as file:
            for line in file:
                if line.startswith("name:"):
                    return line.split(":", 1)[1].strip().strip("'\"")
    except OSError as error:
        stop(2, "%s: %s" % (path, error.strerror))
    stop(2, path + " names no device")


def measure_limit(run, words):
    """Seconds a measurement may take: with many cards there are many pairs."""
    found = read_json(quiet(run.calibrate_program + ["run", "--dry-run", "--json"] + words)[1]) or {}
    return max(LIMITS["measure"], 2 * found.get("seconds", 0))


def measure(run, arguments, machine):
    """The quick run with its time, the full one with its profile; what of it a table says."""
    if arguments.device_profile:
        run.profile = arguments.device_profile
        return profile_name(run.profile), ["measured before: " + run.profile], True
    limit = measure_limit(run, ["--quick"])
    began = time.time()
    run.calibrate("run-quick.json", ["run", "--quick", "--json"], limit=limit)
    seconds = time.time() - began
    words = ["calibrate run --quick took %.0f s%s" % (seconds, "" if seconds <= 120 else ", MORE THAN 120 s")]
    profile = run.path("profile.yaml")
    more = [] if arguments.on or machine["devices"][0]["catalogue"] else ["--name", "this-card"]
    quick = ["--quick"] if arguments.quick else []
    run.calibrate("run.json", ["run", "--json", "--profile", profile] + quick + more, limit=measure_limit(run, quick))
    run.profile = profile if os.path.exists(profile) else ""
    if run.profile:
        return profile_name(profile), words, seconds <= 120
    words.append("no profile was written: plans use the catalogue's device")
    return arguments.on or machine["devices"][0]["catalogue"], words, seconds <= 120


def check_before(run, arguments, machine):
    """What a person wants to know before the hour begins."""
    run.profile = arguments.device_profile
    name = profile_name(run.profile) if run.profile else arguments.on
    if name:
        _, out, err = quiet(plan_words(run, name, 1, os.path.join(JOBS, NEAR + ".yaml")))
        if read_plan(out) is None:
            stop(2, err.strip() or "no plan on " + name)
    run.trial_missing = find_trial_missing(arguments)
    if run.trial_missing is not None:
        print("THE REAL PROGRAMS ARE LEFT OUT: %s" % run.trial_missing)
    if not (arguments.on or arguments.device_profile or machine["devices"][0]["catalogue"]):
        print("the catalogue has no %s: plans are made with what is measured, as this-card; --on names a device of "
              "the catalogue like it" % machine["devices"][0]["name"])
    for card in machine["devices"]:
        taken = card["usable_bytes"] - card["free_bytes"]
        if taken > IN_USE:
            print("device %d IS IN USE: %s are taken; device bytes will be off by them" % (card["index"], gib(taken)))
    free = shutil.disk_usage(run.folder).free
    if free < ROOM:
        print("ONLY %s OF DISK are free for %s" % (gib(free), run.folder))


def everything(run, arguments, machine, jobs, found):
    """The steps in their order; `found` has what there is whenever they end."""
    device, words, right = measure(run, arguments, machine)
    if not device:
        stop(1, "no profile was written and the catalogue has no such card; name one like it with --on")
    found["device"], found["right"] = device, right
    found["words"] += words
    if run.trial_missing is not None:
        found["words"].append("the real programs were left out: " + run.trial_missing)
    for job, job_file, ranks in jobs:
        found["rows"].append(do_job(run, device, job, job_file, ranks))
    if not arguments.no_near:
        found["rows"] += do_near(run, device)
    if not arguments.device_profile:
        found["words"].append("compute-sanitizer: " + sanitize(run, device))
    found["ended"] = True


def missing_of(run, arguments, found):
    """What of the whole was not done, for the page."""
    missing = [] if found["ended"] else ["it was ended before all was done"]
    if run.trial_missing is not None:
        missing.append("no real programs")
    if arguments.jobs:
        missing.append("only the jobs of --jobs")
    return missing + (["no job near capacity"] if arguments.no_near else [])


def write_results(run, arguments, machine, found):
    head = "%s%s, driver %s, CUDA %s, %s." % (
        "ON A STAND-IN RUNTIME WITHOUT A CARD: nothing here is a measurement. " if machine["stand_in"] else "",
        machine["devices"][0]["name"], machine["driver"] or "unknown", machine["runtime"], time.strftime("%Y-%m-%d"))
    text = card_report.table(found["rows"], head) + "\n" + "\n".join("- " + w for w in found["words"]) + "\n"
    print("\n" + text)
    card_report.write(run.path("table.md"), text)
    right = (found["ended"] and found["right"] and all(card_report.row_right(row) for row in found["rows"])
             and all(s["right"] for s in run.steps))
    summary = {"version": 1, "stand_in": machine["stand_in"], "machine": machine, "notes": found["words"],
               "right": right, "missing": missing_of(run, arguments, found), "device": found["device"],
               "date": time.strftime("%Y-%m-%d"), "table": text, "steps": run.steps, "jobs": found["rows"]}
    card_report.write(run.path("summary.json"), json.dumps(summary, indent=1))
    return right


def on_cards(run, arguments, machine):
    name = arguments.on or machine["devices"][0]["catalogue"] or "this-card"
    jobs = jobs_of(arguments, len(machine["devices"]))
    run.folder = arguments.out or os.path.join("calibrate-results", time.strftime("%Y-%m-%d-%H%M") + "-" + name)
    os.makedirs(run.folder, exist_ok=True)
    print("results go to " + run.folder)
    check_before(run, arguments, machine)
    run.profile = ""
    found = {"device": name, "words": [], "right": True, "rows": [], "ended": False}
    ended_by, code = None, 1
    try:
        everything(run, arguments, machine, jobs, found)
    except KeyboardInterrupt:
        ended_by, code = "Ctrl-C", 130
    except (Exception, SystemExit) as error:  # what a card has given until then is not lost
        ended_by, code = getattr(error, "words", repr(error)), getattr(error, "code", 1)
    if ended_by:
        found["words"].append("ENDED: %s; what stands here is all that was done" % ended_by)
    right = write_results(run, arguments, machine, found)
    print(card_report.publish(arguments.root, run.folder))
    if ended_by:
        print("ended: " + ended_by)
        return code
    left_out = "" if run.trial_missing is None else " as far as it went, without the real programs"
    print("all is as predicted" + left_out if right else "OFF: see above, and the steps in summary.json")
    return 0 if right else 1


def main():
    arguments = parse()
    if arguments.publish:
        try:
            print(card_report.publish(arguments.root, arguments.publish))
        except (KeyError, TypeError, ValueError) as error:
            stop(2, "%s has no summary.json of this script: %r" % (arguments.publish, error))
        return 0
    if not arguments.no_build:
        code = subprocess.call([os.path.join(ROOT, "shardfit"), "calibrate", "list"], stdout=subprocess.DEVNULL)
        if code != 0:
            stop(code, "the programs are not built")
    run = Run(arguments, "")
    code, out, err = quiet(run.calibrate_program + ["list", "--json"])
    machine = (read_json(out) or {}).get("machine")
    if code != 0 or machine is None:
        stop(code or 3, err.strip() or "calibrate list says nothing")
    if arguments.dry_run:
        return dry_run(run, arguments, machine)
    if not machine["devices"]:
        stop(4, "waived: " + machine["waived"])
    return on_cards(run, arguments, machine)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        stop(1, "on_a_card: %s" % error)
    except KeyboardInterrupt:
        stop(130, "ended by Ctrl-C")
