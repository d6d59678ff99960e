"""The job of a plan in the person's own libraries: its model, its batch, its optimizer, its sharing."""

import json
import os
import sys

DTYPES = {"bf16": "bfloat16", "bf16-mixed": "float32", "fp16-mixed": "float32", "fp32": "float32"}
AUTOCAST = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}
CATALOGUE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../model_specs/models")


def read_plan(path, name):
    """The option of a plan, and its job."""
    try:
        with open(path) as file:
            plan = json.load(file)
        options = plan["options"]
        name = name or (plan.get("recommendation") or {}).get("option")
        found = [o for o in options if name in (None, o["name"])]
        if len(found) == 1:
            return found[0], found[0]["job"]
        names = ", ".join(o["name"] for o in options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit("%s is no plan of `shardfit plan --json`: %r" % (path, error))
    sys.exit("%s: give one option with --option: %s" % (path, names))


def scalar(text):
    """A value of a file of model_specs."""
    if text.startswith("'") and text.endswith("'"):
        return text[1:-1]
    words = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_config(plan_path, job, given):
    """The model's config as a dict: a config.json, or a file of model_specs (one key a line)."""
    name = given or job["model"]
    places = [name, os.path.join(os.path.dirname(plan_path), name), os.path.join(CATALOGUE, name + ".yaml")]
    path = next((p for p in places if os.path.isfile(p)), None)
    if path is None:
        sys.exit("give the model's config.json with --config: the plan names " + name)
    with open(path) as file:
        if path.endswith(".json"):
            try:
                words = json.load(file)
            except ValueError as error:
                sys.exit("%s is no JSON: %s" % (path, error))
            return {k: v for k, v in words.items() if not k.startswith("_")}
        words = {}
        for line in file:
            line = line.split(" #")[0].rstrip()
            if not line or line.startswith("#"):
                continue
            if line[0] == " " or ":" not in line:
                sys.exit("%s is not one key a line; give the model's config.json with --config" % path)
            key, value = line.split(":", 1)
            words[key] = scalar(value.strip())
    return {k: v for k, v in words.items() if k not in ("name", "source", "parameters", "notes")}


class Model:
    """What to build, and what a batch of it is."""

    def __init__(self, job, words, torch, device="cuda"):
        self.job, self.words, self.torch, self.device = job, dict(words), torch, device
        self.kind = self.words.pop("model_type", None)
        if not self.kind:
            sys.exit("the model's config names no model_type")
        self.pictures = self.kind.startswith("torchvision.")
        if not self.pictures:
            import transformers

            self.config = transformers.AutoConfig.for_model(self.kind, **self.words)
            known = transformers.models.auto.modeling_auto
            if self.kind not in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
                if self.kind not in known.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
                    sys.exit("this script knows causal language models and image classifiers, not "
                             + self.kind)
                self.pictures = True
        self.size = self.words.get("image_size", 224)

    def build(self):
        torch = self.torch
        dtype = getattr(torch, DTYPES[self.job["precision"]])
        if self.kind.startswith("torchvision."):
            import torchvision

            return with_loss(torch, make_torchvision(torch, torchvision, self).to(dtype))
        import transformers

        if hasattr(self.config, "use_cache"):
            self.config.use_cache = False
        maker = (transformers.AutoModelForImageClassification if self.pictures
                 else transformers.AutoModelForCausalLM)
        attention = "eager" if self.job["attention"] == "eager" else "sdpa"
        with torch.device(self.device):
            return maker.from_config(self.config, dtype=dtype, attn_implementation=attention)

    def sample(self, count, device):
        """`count` samples and their labels as the model takes them."""
        torch = self.torch
        if self.pictures:
            dtype = getattr(torch, DTYPES[self.job["precision"]])
            return {"pixel_values": torch.zeros((count, 3, self.size, self.size), dtype=dtype, device=device),
                    "labels": torch.zeros((count,), dtype=torch.long, device=device)}
        shape = (count, self.job["sequence"])
        return {"input_ids": torch.zeros(shape, dtype=torch.long, device=device),
                "labels": torch.zeros(shape, dtype=torch.long, device=device)}


def make_torchvision(torch, torchvision, wanted):
    name = wanted.kind.split(".", 1)[1]
    keys = {"num_classes": wanted.words.get("num_classes", 1000)}
    with torch.device(wanted.device):
        return getattr(torchvision.models, name)(weights=None, **keys)


def with_loss(torch, network):
    """A network of pictures with its loss, called as transformers' models are."""

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, pixel_values, labels):
            logits = self.network(pixel_values)
            return torch.nn.functional.cross_entropy(logits, labels), logits

    return WithLoss()


def add_adapters(job, model):
    import peft

    targets = job.get("lora_targets")
    return peft.get_peft_model(model, peft.LoraConfig(
        r=job.get("lora_rank", 8), lora_alpha=job.get("lora_alpha", 8),
        lora_dropout=job.get("lora_dropout", 0.0),
        target_modules=targets.replace(" ", "").split(",") if targets else None,
        task_type="CAUSAL_LM"), autocast_adapter_dtype=job.get("lora_dtype", "fp32") == "fp32")


def build(option, words, torch):
    """The model; on the host where fully_shard takes it to the card, a unit at a time."""
    job = option["job"]
    if job["precision"] not in DTYPES:
        sys.exit("this script knows the precisions " + ", ".join(DTYPES) + ", not " + job["precision"])
    if job["task"] not in ("full", "pretrain", "lora"):
        sys.exit("this script knows the tasks full, pretrain and lora, not " + job["task"])
    made = Model(job, words, torch, "cpu" if option["parallel"] == "fsdp2" else "cuda")
    model = made.build()
    return made, add_adapters(job, model) if job["task"] == "lora" else model


def recompute(job, model):
    """As a plain loop asks for it; the Trainer asks for itself."""
    if job["recompute"] == "none":
        return
    if job["recompute"] != "full" or not hasattr(model, "gradient_checkpointing_enable"):
        sys.exit("this script knows recompute none and, for transformers' models, full; not "
                 + job["recompute"])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if job["task"] == "lora":
        model.enable_input_require_grads()


def optimizer_class(name, torch):
    """The class and its arguments."""
    optim = torch.optim
    classes = {
        "adamw-fused": (optim.AdamW, {"fused": True}),
        "adamw-foreach": (optim.AdamW, {"foreach": True}),
        "adamw-loop": (optim.AdamW, {"foreach": False}),
        "sgd": (optim.SGD, {"lr": 0.1, "foreach": True}),
        "sgd-momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
        "adagrad": (optim.Adagrad, {"foreach": True}),
        "adafactor": (optim.Adafactor, {"foreach": False}),
    }
    if name not in classes:
        sys.exit("this script knows the optimizers " + ", ".join(classes) + ", not " + name)
    return classes[name]


def make_optimizer(option, parameters, torch):
    kind, keys = optimizer_class(option["job"]["optimizer"], torch)
    if option["parallel"] == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **keys)
    return kind(parameters, **keys)


def share(option, model, torch):
    """The model as several ranks share it, and the dtype of autocast that is left."""
    kind, job = option["parallel"], option["job"]
    autocast = AUTOCAST.get(job["precision"])
    if kind in ("none", "independent"):
        return model, autocast
    if kind in ("ddp", "zero1"):
        return torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[torch.cuda.current_device()]), autocast
    if kind == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        keys = {}
        if autocast:  # the wrapper's policy in place of autocast, reduced in float32
            keys["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, autocast),
                                                     reduce_dtype=torch.float32)
        blocks = max((list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
        for block in blocks:
            fully_shard(block, **keys)
        return fully_shard(model, **keys), None
    sys.exit("this script shares by ddp, zero1 and fsdp2, not by " + kind)
