#!/usr/bin/env python3
"""Writes model_specs/devices/*.yaml from a table of devices.

usage: tools/devices_from_csv.py TABLE.csv model_specs/devices

The table has one row a device: a short name, the part's name, memory figures, peak rates, links, software
and prices as read in public documents, and where each was read. A file per device is written, each number
with its unit and source, so that a person can correct one number without the table.
"""
import csv
import re
import sys
from pathlib import Path


def leading_number(text):
    """'450 (2-way) / 150 (4-way)' -> ('450', '(2-way) / 150 (4-way)'); ('', text) where none."""
    match = re.match(r"\s*<?\s*(\d+(?:\.\d+)?)\s*(.*)$", text)
    return (match.group(1), match.group(2).strip()) if match else ("", text.strip())


def quote(text):
    text = re.sub(r"truth/[\w./]+", "the measured cases", text)
    return "'" + text.replace("'", "''") + "'"


def date_in(text):
    match = re.search(r"\b(20\d\d-\d\d-\d\d|20\d\d-\d\d)\b", text)
    return match.group(1) if match else ""


class Writer:
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)

    def quantity(self, indent, key, value, unit, source, note="", extra=""):
        """One number: value, source and date where they are not the file's own, note."""
        parts = [f"value: {value} {unit}" if unit else f"value: {value}"]
        if extra:
            parts.append(extra)
        if source:
            parts.append(f"source: {quote(source)}")
        if note:
            parts.append(f"note: {quote(note)}")
        self.line(f"{indent}{key}: {{{', '.join(parts)}}}")


def usable(row, rows):
    """The total the runtime reports: (MiB, source, seen GiB, note)."""
    seen = [v for v in row["torch_total_gib_seen"].split("/") if v]
    if row["torch_total_mib_approx"]:
        return row["torch_total_mib_approx"], row["memory_evidence"], seen, ""
    for other in rows:
        if (row["confidence"] == "assumed" and other["torch_total_mib_approx"]
                and other["smi_total_mib"] == row["smi_total_mib"]):
            note = f"assumed: that of {other['short']}, whose driver total is the same"
            return other["torch_total_mib_approx"], other["memory_evidence"], [], note
    return None


def device_text(row, rows):
    out = Writer()
    spec = row["spec_source"]
    out.line(f"name: {row['short']}")
    out.line(f"gpu: {quote(row['gpu'])}")
    aliases = [a for a in row["aliases"].split("|") if a]
    out.line("aliases: [" + ", ".join(quote(a) for a in aliases) + "]")
    out.line(f"compute_capability: {quote(row['compute_capability'])}")
    out.line(f"confidence: {row['confidence']}  # of the memory total the runtime reports")
    out.line(f"source: {quote(spec)}  # of each number that names no other")
    if date_in(spec):
        out.line(f"date: {quote(date_in(spec))}")
    out.line("memory:")
    out.quantity("  ", "marketed", row["marketed_gb"], "GB", "the name of the part")
    if row["smi_total_mib"]:
        out.quantity("  ", "total", row["smi_total_mib"], "MiB", row["memory_evidence"])
    found = usable(row, rows)
    if found:
        mib, source, seen, note = found
        extra = "seen: [" + ", ".join(f"{v} GiB" for v in seen) + "]" if seen else ""
        out.quantity("  ", "usable", mib, "MiB", source, note, extra)
    if row["mem_bw_gb_s"]:
        out.quantity("  ", "bandwidth", row["mem_bw_gb_s"], "GB/s", "")
    rates = [(name, row[column]) for name, column in (
        ("fp4", "fp4_dense_tflops"), ("fp8", "fp8_dense_tflops"), ("bf16", "bf16_dense_tflops"),
        ("fp16", "fp16_dense_tflops"), ("tf32", "tf32_dense_tflops"), ("fp32", "fp32_tflops")) if row[column]]
    if rates:
        out.line("peak_rates:  # dense")
        for name, text in rates:
            note = "the source says less than this" if text.startswith("<") else ""
            out.quantity("  ", name, leading_number(text)[0], "TFLOP/s", "", note)
    achieved, note = leading_number(row["matmul_achieved_frac_bf16"])
    if achieved:
        out.quantity("", "achieved_matmul_share_bf16", achieved, "", "", note)
    if row["link_type"]:
        out.line("link:  # one direction")
        out.line(f"  type: {quote(row['link_type'])}")
        for key, column in (("per_gpu", "link_gb_s_per_gpu_unidir"), ("per_pair", "link_gb_s_per_pair_unidir")):
            value, note = leading_number(row[column])
            if value:
                out.quantity("  ", key, value, "GB/s", "", note)
    if row["pcie_gen"]:
        out.line(f"host_link: {quote(('PCIe ' if row['pcie_gen'][0].isdigit() else '') + row['pcie_gen'])}")
    if row["tdp_w"]:
        out.line(f"power_watts: {row['tdp_w']}")
    if row["min_cuda_or_rocm"]:
        out.line("software:")
        out.line(f"  runtime: {quote(row['min_cuda_or_rocm'])}")
        out.line(f"  pytorch: {quote(row['min_pytorch'])}")
    low, low_note = leading_number(row["price_usd_gpu_h_low"])
    high, _ = leading_number(row["price_usd_gpu_h_high"])
    if low or high:
        out.line("price_seen:  # one GPU, with the month it was seen; never used as truth")
        if low:
            out.line(f"  low_usd_per_hour: {low}")
        if high:
            out.line(f"  high_usd_per_hour: {high}")
        out.line(f"  source: {quote(row['price_notes'])}")
        if low_note:
            out.line(f"  note: {quote('the low one is ' + low_note.strip('()'))}")
    if row["reported_mfu"]:
        out.line(f"reported_utilisation: {quote(row['reported_mfu'])}")
    if row["caveats"]:
        out.line(f"caveats: {quote(row['caveats'])}")
    return "\n".join(out.lines) + "\n"


def main():
    table, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with table.open(newline="") as text:
        rows = list(csv.DictReader(text))
    for row in rows:
        (folder / f"{row['short']}.yaml").write_text(device_text(row, rows))


if __name__ == "__main__":
    main()
