#!/usr/bin/env python3
"""Everything that has to be done on a card, in one go; results in a folder of its own.

    calibrate/on_a_card.py --dry-run             says what would run, bytes and seconds; needs no card
    calibrate/on_a_card.py                       builds, measures, confirms, tries, compares
    calibrate/on_a_card.py --python ~/v/bin/python --quick

Measured: `calibrate run` (its profile is what the plans then use), and compute-sanitizer over its
kernels where it is found. For each job of calibrate/jobs, and those of calibrate/jobs/pair where
there are two cards: plan, confirm, smoke, the real program for three steps, compare. Then a job
within 3 % of the card's capacity, and one 3 % above it that has to be refused. At the end a table
for docs/calibration.md. Exit code: 0 all is as predicted, 1 something is off or failed, 2 bad input,
4 waived: no device is there. Needs Python 3.8 and nothing else; the real programs need PyTorch,
transformers, peft and torchvision in the Python of --python, and are waived where it has none.
"""

import argparse
import glob
import json
import os
import shlex
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
JOBS = os.path.join(ROOT, "calibrate", "jobs")
TRIAL = os.path.join(ROOT, "calibrate", "trial", "trial.py")
NEAR = "llama-3.2-1b-full"  # made longer until it fills the card
LONGEST = 1 << 16  # sixteens of tokens
TRIAL_SECONDS = 90  # a guess for one job: loading the libraries, building the model, three steps


class Run:
    """Commands with their output in the folder of results."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.steps = arguments, folder, []
        self.shardfit = os.path.join(arguments.build, "shardfit")
        self.calibrate_program = (shlex.split(arguments.under)
                                  + [os.path.join(arguments.build, "shardfit-calibrate")])

    def path(self, name):
        return os.path.join(self.folder, name)

    def do(self, name, command, expected=(0,), limit=1800):
        """Runs it; stdout goes to `name`, stderr to name.err. Gives exit code and stdout."""
        print("  %-44s" % name, end="", flush=True)
        began = time.time()
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit,
                                  universal_newlines=True)
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            code, out, err = 124, "", "not done after %d seconds" % limit
        except OSError as error:
            code, out, err = 127, "", str(error)
        seconds = time.time() - began
        for text, ending in ((out, ""), (err, ".err")):
            if text:
                with open(self.path(name + ending), "w") as file:
                    file.write(text)
        right = code in expected
        self.steps.append({"step": name, "command": command, "exit": code, "seconds": round(seconds, 2),
                           "right": right})
        print("%6.1f s  %s" % (seconds, "done" if right else "EXIT %d: %s" % (code, last_line(err or out))))
        return code, out

    def calibrate(self, name, words, **keys):
        return self.do(name, self.calibrate_program + words, **keys)


def last_line(text):
    lines = [line for line in text.strip().split("\n") if line.strip()]
    return lines[-1][:120] if lines else "nothing was said"


def read_json(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def jobs_of(arguments, devices):
    files = sorted(glob.glob(os.path.join(JOBS, "*.yaml")))
    if devices >= 2:
        files += sorted(glob.glob(os.path.join(JOBS, "pair", "*.yaml")))
    found = [(os.path.splitext(os.path.basename(f))[0], f, 2 if os.sep + "pair" + os.sep in f else 1)
             for f in files]
    unknown = set(arguments.jobs) - {name for name, _, _ in found}
    if unknown:
        stop(2, "unknown job %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(n for n, _, _ in found)))
    return [job for job in found if not arguments.jobs or job[0] in arguments.jobs]


def stop(code, words):
    print(words, file=sys.stderr)
    sys.exit(code)


def quiet(command):
    """Exit code and stdout of a command that is no step."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    return done.returncode, done.stdout, done.stderr


def plan_words(run, device, count, job_file, more=()):
    words = [run.shardfit, "plan", job_file, "--on", device if count == 1 else "%dx%s" % (count, device)]
    if run.profile:
        words += ["--device-profile", run.profile]
    return words + ["--json"] + list(more)


def needed_share(run, device, sequence):
    """Verdict, and bytes needed as a share of what the card has for the program."""
    words = plan_words(run, device, 1, os.path.join(JOBS, NEAR + ".yaml"),
                       ["--micro-batch", "1", "--sequence", str(sequence)])
    _, out, err = quiet(words)
    plan = read_json(out)
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
    code, _ = run.do(name + ".trial.log", start_trial(run, plan, trial, ranks))
    row["trial"] = "done" if code == 0 else "failed"
    if not os.path.exists(trial):
        return
    row["compared"] = compare(run, name, plan, trial)
    if not row["compared"] or row["compared"]["right"] or "--no-cudnn-attention" in run.arguments.trial_options:
        return
    again = name + ".no-cudnn"
    code, _ = run.do(again + ".trial.log",
                     start_trial(run, plan, run.path(again + ".trial.json"), ranks, ["--no-cudnn-attention"]))
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
                              ["confirm", plan, "--json", "--gpu-budget", run.arguments.gpu_budget], expected=(0, 1))
    row["confirm"] = read_json(out)
    if row["confirm"] is None:
        row["confirm_words"] = last_line(out)
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
    sequence, verdict, share = sequence_within(run, device, 0.972, 0.985)
    print("  near capacity: %d tokens need %.1f %% of the card (%s)" % (sequence, 100 * share, verdict))
    row = do_job(run, device, "near-capacity", os.path.join(JOBS, NEAR + ".yaml"), 1,
                 ["--micro-batch", "1", "--sequence", str(sequence)])
    row["share"] = share
    row["right"] = row["fits"] and share >= 0.97
    rows.append(row)
    sequence, _, above = sequence_within(run, device, 1.03, 1.05)
    programs = run.path("above-capacity")
    os.makedirs(programs, exist_ok=True)
    words = plan_words(run, device, 1, os.path.join(JOBS, NEAR + ".yaml"),
                       ["--micro-batch", "1", "--sequence", str(sequence), "--export-program", programs])
    code, out = run.do("above-capacity.plan.json", words, (1,))
    row = {"job": "above-capacity", "ranks": 1, "share": above, "fits": code == 0, "refused_by_plan": code == 1}
    plan = os.path.join(programs, "plan.json")
    with open(plan, "w") as file:
        file.write(out)
    option = (read_json(out) or {"options": [{"name": device}]})["options"][0]["name"]
    code, out = run.calibrate("above-capacity.confirm.txt", ["confirm", plan, "--option", option], expected=(1,))
    row["refused_by_confirm"] = code == 1 and "nothing was allocated" in out
    row["right"] = row["refused_by_plan"] and row["refused_by_confirm"]
    if run.trial_missing is None:  # the real program has to fail, too
        code, _ = run.do("above-capacity.trial.log",
                         start_trial(run, plan, run.path("above-capacity.trial.json"), 1, ["--option", option]), (1,))
        row["real_program_fails"] = code == 1
        row["right"] = row["right"] and code == 1
    for exported in glob.glob(os.path.join(programs, "*.program")):
        os.remove(exported)
    return rows + [row]


def sanitize(run):
    """compute-sanitizer over every kernel of the program."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        return "waived: compute-sanitizer is not there"
    rows = ["modules", "launch", "memory-bound", "attention", "device-copy", "gemm-batched"]
    words = []
    for kind in ("memcheck", "racecheck", "synccheck"):
        code, _ = run.do("sanitizer-%s.txt" % kind,
                         shlex.split(run.arguments.under) + [tool, "--tool", kind, "--error-exitcode", "9"]
                         + [os.path.join(run.arguments.build, "shardfit-calibrate"), "run", "--quick", "--only"] + rows)
        words.append("%s %s" % (kind, "clean" if code == 0 else "exit %d" % code))
    return ", ".join(words)


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
                 else row.get("confirm_words", "-"))
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
                if row["refused_by_plan"] and row["refused_by_confirm"] else "NOT REFUSED")
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
    for name, job_file, ranks in jobs_of(arguments, devices):
        code, out, err = quiet(plan_words(run, device, ranks, job_file))
        plan = read_json(out)
        if plan is None:
            stop(2, err.strip())
        option = plan["options"][0]
        steps = 3 * (option["step_seconds"] or 0)
        seconds = min(2 * steps + 10, budget_seconds(arguments.gpu_budget)) + (0 if arguments.no_trial else TRIAL_SECONDS)
        print("  %-44s%6.0f s, device %s on each of %d: %s" % (
            name, seconds, gib(option["gpus"][0]["device_bytes"]), ranks, option["verdict"]))
        total += seconds
    if not arguments.no_near:
        sequence, _, share = sequence_within(run, device, 0.972, 0.985)
        print("  %-44s%6.0f s, %s with %d tokens, %.1f %% of the card" % (
            "near-capacity", 2 * TRIAL_SECONDS, NEAR, sequence, 100 * share))
        total += 2 * TRIAL_SECONDS
    print("  in all some %.0f minutes, of it a guess of %d s for each real program" % (total / 60 + 1, TRIAL_SECONDS))


def budget_seconds(text):
    code, value = 1.0, text.strip().rstrip("s").strip()
    try:
        return code * float(value)
    except ValueError:
        stop(2, "--gpu-budget: seconds, such as 60s")


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
    parser.add_argument("--no-build", action="store_true", help="they are built")
    return parser.parse_args()


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


def measure(run, arguments, machine):
    """The quick run with its time, the full one with its profile; what of it a table says."""
    if arguments.device_profile:
        run.profile = arguments.device_profile
        return profile_name(run.profile), ["measured before: " + run.profile], True
    began = time.time()
    run.calibrate("run-quick.json", ["run", "--quick", "--json"])
    seconds = time.time() - began
    words = ["calibrate run --quick took %.0f s%s" % (seconds, "" if seconds <= 120 else ", MORE THAN 120 s")]
    profile = run.path("profile.yaml")
    more = [] if arguments.on or machine["devices"][0]["catalogue"] else ["--name", "this-card"]
    run.calibrate("run.json", ["run", "--json", "--profile", profile] + (["--quick"] if arguments.quick else []) + more)
    run.profile = profile if os.path.exists(profile) else ""
    if run.profile:
        words.append("profile.yaml belongs under model_specs/devices/measured/")
        return profile_name(profile), words, seconds <= 120
    words.append("no profile was written: plans use the catalogue's device")
    return arguments.on or machine["devices"][0]["catalogue"], words, seconds <= 120


def main():
    arguments = parse()
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
    name = arguments.on or machine["devices"][0]["catalogue"] or "this-card"
    run.folder = arguments.out or os.path.join("calibrate-results", time.strftime("%Y-%m-%d-%H%M") + "-" + name)
    os.makedirs(run.folder, exist_ok=True)
    jobs = jobs_of(arguments, len(machine["devices"]))
    print("results go to " + run.folder)
    run.profile = ""
    device, words, right = measure(run, arguments, machine)
    if not device:
        stop(2, "the catalogue has no such card; name one like it with --on")
    if not arguments.device_profile:
        words.append("compute-sanitizer: " + sanitize(run))
    run.trial_missing = find_trial_missing(arguments)
    if run.trial_missing is not None:
        words.append("the real programs were left out: " + run.trial_missing)
    rows = [do_job(run, device, job, job_file, ranks) for job, job_file, ranks in jobs]
    if not arguments.no_near:
        rows += do_near(run, device)
    head = "%s%s, driver %s, CUDA %s, %s." % (
        "ON A STAND-IN RUNTIME WITHOUT A CARD: nothing here is a measurement. " if machine["stand_in"] else "",
        machine["devices"][0]["name"], machine["driver"] or "unknown", machine["runtime"], time.strftime("%Y-%m-%d"))
    text = table(rows, head) + "\n" + "\n".join("- " + w for w in words) + "\n"
    with open(run.path("table.md"), "w") as file:
        file.write(text)
    right = right and all(row_right(row) for row in rows) and all(s["right"] for s in run.steps)
    with open(run.path("summary.json"), "w") as file:
        json.dump({"version": 1, "stand_in": machine["stand_in"], "machine": machine, "notes": words, "right": right,
                   "steps": run.steps, "jobs": rows}, file, indent=1)
    print("\n" + text)
    print("all is as predicted" if right else "OFF: see above, and the steps in summary.json")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
