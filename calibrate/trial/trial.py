#!/usr/bin/env python3
"""The job of a plan on the person's own stack, for three steps, with its memory by phase as JSON.

    ./shardfit plan plan.yaml --json > plan.json
    python3 calibrate/trial/trial.py plan.json --out trial.json
    ./shardfit compare plan.json trial.json

Several GPUs: torchrun --nproc-per-node 2 calibrate/trial/trial.py plan.json --out trial.json
(ddp, zero1 and fsdp2 of plain-pytorch; the Trainer makes its own DDP). Needs PyTorch and
transformers, peft for LoRA, torchvision for its networks. Weights are random and data are zeros:
neither moves a byte of memory. Exit code: 0 the steps were done, 1 they were not (what was measured
until then is written, with the reason), 2 the plan is none this script knows.
"""

import argparse
import contextlib
import gc
import json
import os
import sys
import time

import job as jobs


class Meter:
    """Peaks between marks, as a plan calls its phases."""

    PAUSE = 0.3  # seconds; NCCL's watchdog looks every 0.1 for finished work and lets go of its tensors

    def __init__(self, torch, steps, ranks):
        self.torch, self.steps, self.ranks = torch, steps, ranks
        self.step = 0
        self.phases = {}
        self.peak = {"allocated_bytes": 0, "reserved_bytes": 0, "device_bytes": 0}
        self.seconds = []
        self.began = None
        self.paused = 0.0

    def read(self, live):
        cuda = self.torch.cuda
        free, total = cuda.mem_get_info()
        return {
            "allocated_bytes": cuda.memory_allocated() if live else cuda.max_memory_allocated(),
            "reserved_bytes": cuda.memory_reserved() if live else cuda.max_memory_reserved(),
            "device_bytes": total - free,
        }

    def keep(self, name, values):
        old = self.phases.get(name, {})
        self.phases[name] = {k: max(v, old.get(k, 0)) for k, v in values.items()}

    def begin_step(self):
        self.step += 1
        self.torch.cuda.synchronize()
        self.began = time.perf_counter()
        self.paused = 0.0

    def pause(self):
        """A step of a large model lasts longer than the watchdog's round; a small one must wait for it."""
        if self.ranks == 1:
            return
        self.torch.cuda.synchronize()
        from_ = time.perf_counter()
        time.sleep(self.PAUSE)
        self.paused += time.perf_counter() - from_

    def peaks(self):
        values = self.read(False)
        self.peak = {k: max(v, self.peak[k]) for k, v in values.items()}
        return values

    def mark(self, phase):
        names = {self.steps: "steady_step.", 1: "first_step.", 2: "second_step."}
        self.keep(names.get(self.step, "step_%d." % self.step) + phase, self.peaks())
        if phase != "forward":
            self.pause()
        self.torch.cuda.reset_peak_memory_stats()

    def live(self, name):
        if self.step in (0, self.steps):
            self.keep(name, self.read(True))
        self.torch.cuda.reset_peak_memory_stats()

    def end_step(self):
        self.torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began - self.paused)
        self.live("between_steps")


def plain_loop(option, made, model, autocast, meter, torch):
    """As docs/programs.md has plain-loop-2: names keep what they name until they are bound anew."""
    job = option["job"]
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = jobs.make_optimizer(option, parameters, torch)
    scaler = torch.amp.GradScaler("cuda") if job["precision"] == "fp16-mixed" else None
    for _ in range(meter.steps):
        meter.begin_step()
        for _ in range(job["accumulation"]):
            batch = made.sample(job["micro_batch"], "cuda")
            with (torch.autocast("cuda", dtype=getattr(torch, autocast)) if autocast
                  else contextlib.nullcontext()):
                result = model(**batch)
                loss = result[0]
                if job["accumulation"] > 1:
                    loss = loss / job["accumulation"]
            meter.mark("forward")
            (scaler.scale(loss) if scaler else loss).backward()
            meter.mark("backward")
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        meter.mark("optimizer")
        optimizer.zero_grad(set_to_none=True)
        meter.end_step()


def trainer_loop(option, made, model, autocast, meter, torch):
    import tempfile

    import transformers

    job = option["job"]

    class Marks(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs):
            meter.mark("clip")
            meter.mark("pre_optimizer")

        def on_optimizer_step(self, *args, **kwargs):
            meter.mark("optimizer")

        def on_step_end(self, *args, **kwargs):
            meter.end_step()

    class Metered(transformers.Trainer):
        def get_batch_samples(self, *args, **kwargs):
            meter.begin_step()
            found = super().get_batch_samples(*args, **kwargs)
            meter.mark("batch")
            return found

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            meter.mark("forward")
            return loss

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            meter.mark("backward")
            return loss

    class Zeros(torch.utils.data.Dataset):
        def __len__(self):
            return job["micro_batch"] * job["accumulation"] * (meter.steps + 1) * 8

        def __getitem__(self, index):
            return {k: v[0] for k, v in made.sample(1, "cpu").items()}

    names = {"adamw-fused": "adamw_torch_fused", "adamw-foreach": "adamw_torch", "sgd": "sgd",
             "adafactor": "adafactor", "adagrad": "adagrad", "adamw8bit": "adamw_bnb_8bit",
             "paged-adamw8bit": "paged_adamw_8bit"}
    if job["optimizer"] not in names:
        sys.exit("the Trainer has no optimizer " + job["optimizer"])
    full = job["recompute"] == "full"
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=meter.steps, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, optim=names[job["optimizer"]],
            per_device_train_batch_size=job["micro_batch"],
            gradient_accumulation_steps=job["accumulation"], gradient_checkpointing=full,
            gradient_checkpointing_kwargs={"use_reentrant": False} if full else None,
            bf16=job["precision"] == "bf16-mixed", fp16=job["precision"] == "fp16-mixed")
        if meter.ranks == 1 and arguments.n_gpu > 1:
            arguments._n_gpu = 1  # else the Trainer spreads one process over all cards it sees
        trainer = Metered(model=model, args=arguments, train_dataset=Zeros(), callbacks=[Marks()])
        trainer.train()


def begin_ranks(option, torch):
    """This process's rank; of several, where torchrun started them."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    planned = len(option["gpus"])
    if option["parallel"] == "independent" or option["job"]["framework"] == "deepspeed":
        planned = 1
    if ranks != planned:
        print("option %s has %d ranks, %d are started: torchrun --nproc-per-node %d %s ..."
              % (option["name"], planned, ranks, planned, sys.argv[0]), file=sys.stderr)
        sys.exit(2)
    if ranks > 1 and option["job"]["framework"] == "plain-pytorch":
        torch.distributed.init_process_group("nccl")
    return rank, ranks


def gather(found, rank, ranks, torch):
    """What every rank found, on rank 0; through the store, so that the device takes no part."""
    if ranks == 1:
        return [found]
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    store.set("shardfit trial %d" % rank, json.dumps(found))
    if rank > 0:
        store.get("shardfit trial read")  # rank 0 keeps the store; it must not go before
        return []
    all_found = [json.loads(store.get("shardfit trial %d" % r)) for r in range(ranks)]
    store.set("shardfit trial read", "1")
    return all_found


def kernels_run(torch):
    """False on a runtime that accepts kernels and runs none."""
    return torch.full((1000,), 3.0, device="cuda").sum().item() == 3000.0


def ask_nothing_of_values(torch):
    """Truncated normals would be drawn for ever; what ranks gather is not what they sent."""
    import torch.nn.parallel.distributed as distributed

    torch.nn.init.trunc_normal_ = lambda tensor, *a, **k: tensor
    distributed._verify_param_shape_across_processes = lambda *a, **k: None


def train(option, words, arguments, torch, meter):
    job = option["job"]
    made, model = jobs.build(option, words, torch)
    model.train()
    autocast = None
    if job["framework"] == "plain-pytorch":
        jobs.recompute(job, model)
        model, autocast = jobs.share(option, model, torch)
    gc.collect()
    torch.cuda.empty_cache()
    meter.live("loaded")
    loop = plain_loop if job["framework"] == "plain-pytorch" else trainer_loop
    loop(option, made, model, autocast, meter, torch)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plan")
    parser.add_argument("--option", help="of the plan; default the recommended one")
    parser.add_argument("--config", help="the model's config.json; default the plan's model")
    parser.add_argument("--out", default="trial.json")
    parser.add_argument("--snapshot", help="also write a memory snapshot, for shardfit compare")
    parser.add_argument("--stand-in", action="store_true",
                        help="for a runtime that runs no kernels: nothing is asked of values")
    parser.add_argument("--no-cudnn-attention", action="store_true",
                        help="keep scaled_dot_product_attention from cuDNN's kernel")
    arguments = parser.parse_args()
    option, job = jobs.read_plan(arguments.plan, arguments.option)
    words = jobs.read_config(arguments.plan, job, arguments.config)
    if job["framework"] not in ("plain-pytorch", "hf-trainer"):
        sys.exit("this script knows plain-pytorch and hf-trainer, not " + job["framework"])
    if job.get("allocator"):
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", job["allocator"])
    try:
        import torch
    except ImportError as fault:
        print(f"this needs PyTorch, which this Python has not: {fault}", file=sys.stderr)
        sys.exit(2)

    rank, ranks = begin_ranks(option, torch)
    if arguments.no_cudnn_attention:
        torch.backends.cuda.enable_cudnn_sdp(False)
    if arguments.stand_in:
        ask_nothing_of_values(torch)
    if arguments.snapshot:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    meter = Meter(torch, 3, ranks)
    failure = ""
    try:
        train(option, words, arguments, torch, meter)
    except torch.OutOfMemoryError as error:
        failure = "step %d: %s" % (meter.step, str(error).split("\n")[0])
        meter.peaks()
    if arguments.snapshot:
        torch.cuda.memory._dump_snapshot(
            arguments.snapshot if ranks == 1 else "%s.rank%d" % (arguments.snapshot, rank))
    found = {"rank": rank, "max_memory_allocated": meter.peak["allocated_bytes"],
             "max_memory_reserved": meter.peak["reserved_bytes"],
             "device_bytes": meter.peak["device_bytes"], "phases": meter.phases,
             "step_seconds": meter.seconds, "memory_stats": dict(torch.cuda.memory_stats())}
    if failure:
        found["failure"] = failure
    stand_in = not kernels_run(torch)
    if stand_in:  # bytes outside the allocator and times would be nobody's
        del found["device_bytes"], found["step_seconds"]
        for phase in found["phases"].values():
            phase.pop("device_bytes")
    everyone = gather(found, rank, ranks, torch)
    if rank == 0:
        versions = {name: sys.modules[name].__version__
                    for name in ("torch", "transformers", "peft", "torchvision") if name in sys.modules}
        with open(arguments.out, "w") as out:
            json.dump({"kind": "shardfit-trial", "version": 1, "option": option["name"],
                       "versions": versions,
                       "device": torch.cuda.get_device_name(), "stand_in": stand_in,
                       "date": time.strftime("%Y-%m-%d", time.gmtime()),
                       "cudnn_attention": not arguments.no_cudnn_attention, "ranks": everyone},
                      out, indent=1)
    if failure:
        print(failure, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
