#!/usr/bin/env python3
"""The job of a plan on the person's own stack, for three steps, with its memory by phase as JSON.

    ./shardfit plan plan.yaml --json > plan.json
    python3 calibrate/trial/trial.py plan.json --out trial.json
    ./shardfit compare plan.json trial.json

Several GPUs: torchrun --nproc-per-node 2 calibrate/trial/trial.py plan.json --out trial.json
(ddp and fsdp2 of plain-pytorch; the Trainer makes its own DDP). Needs PyTorch and transformers, and
peft for LoRA. Weights are random and data are zeros: neither moves a byte of memory.
"""

import argparse
import contextlib
import gc
import json
import os
import sys
import time

DTYPES = {"bf16": "bfloat16", "bf16-mixed": "float32", "fp16-mixed": "float32", "fp32": "float32"}
AUTOCAST = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}


class Meter:
    """Peaks between marks, as a plan calls its phases."""

    def __init__(self, torch, steps):
        self.torch, self.steps = torch, steps
        self.step = 0
        self.phases = {}
        self.peak = {"allocated_bytes": 0, "reserved_bytes": 0, "device_bytes": 0}
        self.seconds = []
        self.began = None

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

    def mark(self, phase):
        values = self.read(False)
        self.peak = {k: max(v, self.peak[k]) for k, v in values.items()}
        names = {self.steps: "steady_step.", 1: "first_step.", 2: "second_step."}
        self.keep(names.get(self.step, "step_%d." % self.step) + phase, values)
        self.torch.cuda.reset_peak_memory_stats()

    def live(self, name):
        if self.step in (0, self.steps):
            self.keep(name, self.read(True))
        self.torch.cuda.reset_peak_memory_stats()

    def end_step(self):
        self.torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)
        self.live("between_steps")


def read_job(arguments):
    plan = json.load(open(arguments.plan))
    name = arguments.option or (plan.get("recommendation") or {}).get("option")
    options = [o for o in plan["options"] if name in (None, o["name"])]
    if len(options) != 1:
        sys.exit("give one option with --option: " + ", ".join(o["name"] for o in plan["options"]))
    option = options[0]
    config = arguments.config or option["job"]["model"]
    if not os.path.exists(config):
        config = os.path.join(os.path.dirname(arguments.plan) or ".", option["job"]["model"])
    if not config.endswith(".json") or not os.path.exists(config):
        sys.exit("give the model's config.json with --config: the plan names " + option["job"]["model"])
    return option, option["job"], config


def build(job, config_path, torch, arguments):
    import transformers

    if arguments.no_init:
        transformers.PreTrainedModel._initialize_weights = lambda *a, **k: None
    if arguments.no_cudnn_attention:
        torch.backends.cuda.enable_cudnn_sdp(False)
    words = {k: v for k, v in json.load(open(config_path)).items() if not k.startswith("_")}
    config = transformers.AutoConfig.for_model(words.pop("model_type"), **words)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    attention = "eager" if job["attention"] == "eager" else "sdpa"
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, DTYPES[job["precision"]]), attn_implementation=attention)
    if job["task"] == "lora":
        import peft

        targets = job.get("lora_targets")
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=job.get("lora_rank", 8), lora_alpha=job.get("lora_alpha", 8),
            lora_dropout=job.get("lora_dropout", 0.0),
            target_modules=targets.replace(" ", "").split(",") if targets else None,
            task_type="CAUSAL_LM"), autocast_adapter_dtype=job.get("lora_dtype", "fp32") == "fp32")
    elif job["task"] not in ("full", "pretrain"):
        sys.exit("this script knows the tasks full, pretrain and lora, not " + job["task"])
    return model


def recompute(job, model):
    if job["recompute"] == "none":
        return
    if job["recompute"] != "full":
        sys.exit("this script knows recompute none and full, not " + job["recompute"])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if job["task"] == "lora":
        model.enable_input_require_grads()


def make_optimizer(name, parameters, torch):
    optim = torch.optim
    makers = {
        "adamw-fused": lambda: optim.AdamW(parameters, fused=True),
        "adamw-foreach": lambda: optim.AdamW(parameters, foreach=True),
        "adamw-loop": lambda: optim.AdamW(parameters, foreach=False),
        "sgd": lambda: optim.SGD(parameters, lr=0.1, foreach=True),
        "sgd-momentum": lambda: optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
        "adagrad": lambda: optim.Adagrad(parameters, foreach=True),
        "adafactor": lambda: optim.Adafactor(parameters, foreach=False),
    }
    if name not in makers:
        sys.exit("this script knows the optimizers " + ", ".join(makers) + ", not " + name)
    return makers[name]()


def share(option, model, torch):
    """The model as several ranks share it."""
    kind = option["parallel"]
    if kind in ("none", "independent") or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return model
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        blocks = max((list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
        for block in blocks:
            fully_shard(block)
        return fully_shard(model)
    sys.exit("this script shares by ddp and fsdp2, not by " + kind)


def plain_loop(option, job, model, meter, torch):
    """As docs/programs.md has plain-loop-2: names keep what they name until they are bound anew."""
    model = share(option, model, torch)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(job["optimizer"], parameters, torch)
    autocast = AUTOCAST.get(job["precision"])
    scaler = torch.amp.GradScaler("cuda") if job["precision"] == "fp16-mixed" else None
    shape = (job["micro_batch"], job["sequence"])
    for _ in range(meter.steps):
        meter.begin_step()
        for _ in range(job["accumulation"]):
            ids = torch.zeros(shape, dtype=torch.long, device="cuda")
            labels = torch.zeros(shape, dtype=torch.long, device="cuda")
            with (torch.autocast("cuda", dtype=getattr(torch, autocast)) if autocast
                  else contextlib.nullcontext()):
                result = model(input_ids=ids, labels=labels)
                loss = result.loss
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


def trainer_loop(job, model, meter, torch):
    import tempfile

    import transformers

    class Marks(transformers.TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            pass

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
            tokens = torch.zeros(job["sequence"], dtype=torch.long)
            return {"input_ids": tokens, "labels": tokens.clone()}

    names = {"adamw-fused": "adamw_torch_fused", "adamw-foreach": "adamw_torch", "sgd": "sgd",
             "adafactor": "adafactor", "adagrad": "adagrad", "adamw8bit": "adamw_bnb_8bit",
             "paged-adamw8bit": "paged_adamw_8bit"}
    full = job["recompute"] == "full"
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=meter.steps, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, optim=names[job["optimizer"]],
            per_device_train_batch_size=job["micro_batch"],
            gradient_accumulation_steps=job["accumulation"], gradient_checkpointing=full,
            gradient_checkpointing_kwargs={"use_reentrant": False} if full else None,
            bf16=job["precision"] == "bf16-mixed", fp16=job["precision"] == "fp16-mixed")
        trainer = Metered(model=model, args=arguments, train_dataset=Zeros(), callbacks=[Marks()])
        trainer.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plan")
    parser.add_argument("--option", help="of the plan; default the recommended one")
    parser.add_argument("--config", help="the model's config.json; default the plan's model")
    parser.add_argument("--out", default="trial.json")
    parser.add_argument("--snapshot", help="also write a memory snapshot, for shardfit compare")
    parser.add_argument("--no-init", action="store_true", help="leave weights as they are allocated")
    parser.add_argument("--no-cudnn-attention", action="store_true",
                        help="keep scaled_dot_product_attention from cuDNN's kernel")
    arguments = parser.parse_args()
    option, job, config = read_job(arguments)
    if job.get("allocator"):
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", job["allocator"])
    import torch

    rank = int(os.environ.get("RANK", "0"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and job["framework"] == "plain-pytorch":
        torch.distributed.init_process_group("nccl")
    if arguments.snapshot:
        torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    model = build(job, config, torch, arguments)
    model.train()
    if job["framework"] == "plain-pytorch":
        recompute(job, model)
    gc.collect()
    torch.cuda.empty_cache()
    meter = Meter(torch, 3)
    meter.live("loaded")
    if job["framework"] == "plain-pytorch":
        plain_loop(option, job, model, meter, torch)
    elif job["framework"] == "hf-trainer":
        trainer_loop(job, model, meter, torch)
    else:
        sys.exit("this script knows plain-pytorch and hf-trainer, not " + job["framework"])
    if arguments.snapshot:
        torch.cuda.memory._dump_snapshot(arguments.snapshot)
    import transformers

    found = {"rank": rank, "max_memory_allocated": meter.peak["allocated_bytes"],
             "max_memory_reserved": meter.peak["reserved_bytes"],
             "device_bytes": meter.peak["device_bytes"], "phases": meter.phases,
             "step_seconds": meter.seconds, "memory_stats": dict(torch.cuda.memory_stats())}
    ranks = [found]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(ranks, found)
    if rank == 0:
        with open(arguments.out, "w") as out:
            json.dump({"kind": "shardfit-trial", "version": 1, "option": option["name"],
                       "torch": torch.__version__, "transformers": transformers.__version__,
                       "device": torch.cuda.get_device_name(), "ranks": ranks}, out, indent=1)


if __name__ == "__main__":
    main()
