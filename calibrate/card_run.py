"""Commands of on_a_card.py: each a step with its output in a folder, an end in time, and nothing left behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

LIMITS = {"trial": 900, "sanitizer": 300, "measure": 600, "other": 300}  # seconds a step may take


class Run:
    """Commands with their output in the folder of results."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.steps = arguments, folder, []
        self.shardfit = os.path.join(arguments.build, "shardfit")
        self.calibrate_program = (shlex.split(arguments.under)
                                  + [os.path.join(arguments.build, "shardfit-calibrate")])

    def path(self, name):
        return os.path.join(self.folder, name)

    def do(self, name, command, expected=(0,), limit=LIMITS["other"]):
        """Runs it; stdout goes to `name`, stderr to name.err. Gives exit code and stdout."""
        print("  %-44s" % name, end="", flush=True)
        began = time.time()
        code, out, err = run_in_group(command, limit)
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


def run_in_group(command, limit):
    """Exit code (124: too late, 127: not started), stdout and stderr. Nothing it started outlives it: what
    is left on a card would be in the way of the next step."""
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                                 start_new_session=True)
    except OSError as error:
        return 127, "", str(error)
    try:
        out, err = child.communicate(timeout=limit)
        return child.returncode, out, err
    except BaseException as why:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
                child.communicate(timeout=10)
                break
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        if isinstance(why, subprocess.TimeoutExpired):
            return 124, "", "not done after %d seconds" % limit
        raise


def last_line(text):
    lines = [line for line in text.strip().split("\n") if line.strip()]
    return lines[-1][:120] if lines else "nothing was said"


def read_json(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


class Stop(SystemExit):
    """The end, with its exit code and why."""

    def __init__(self, code, words):
        super().__init__(code)
        self.words = words


def stop(code, words):
    print(words, file=sys.stderr)
    raise Stop(code, words)


def quiet(command):
    """Exit code and stdout of a command that is no step."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    return done.returncode, done.stdout, done.stderr
