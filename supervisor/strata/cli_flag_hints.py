"""What is said of a flag that a command does not have: what it may have meant. Knows the names that
other servers give to settings of ours, and those of theirs that have no counterpart here.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from strata.config_source import close_matches, fields

OTHER_NAMES = {  # what other servers call these flags
    "-m": "--model",
    "-c": "--max-context",
    "--ctx-size": "--max-context",
    "--max-model-len": "--max-context",
    "-np": "--batch",
    "--parallel": "--batch",
    "--max-num-seqs": "--batch",
    "-t": "--threads",
    "-p": "--port",
    "-ctk": "--kv",
    "-ctv": "--kv",
    "--cache-type-k": "--kv",
    "--cache-type-v": "--kv",
    "-md": "--mtp",
    "--model-draft": "--mtp",
    "--draft": "--spec",
    "--draft-max": "--spec",
    "--draft-n": "--spec",
    "--draft-p-min": "--spec-min-p",
    "-a": "--served-model-name",
    "--alias": "--served-model-name",
    "-b": "--prefill",
    "--batch-size": "--prefill",
    "-ub": "--prefill",
    "--ubatch-size": "--prefill",
    "--max-num-batched-tokens": "--prefill",
}
ALL_LAYERS = "there is no such setting: a device runs all layers, and --device says which"
NOT_HERE = {  # what other servers have and this one has not, and what there is instead
    "-ngl": ALL_LAYERS,
    "--gpu-layers": ALL_LAYERS,
    "--n-gpu-layers": ALL_LAYERS,
}


def flag_hint(name: str, known: AbstractSet[str], *, is_reload: bool) -> str:
    """What follows "unknown flag NAME"; nothing where nothing is known. `known`: the command's."""
    # A short flag may carry its value: -t8.
    short = name.rstrip("0123456789") if not name.startswith("--") else name
    other = OTHER_NAMES.get(short, name)
    if is_reload and other.removeprefix("--") in {field.flag for field in fields().values()}:
        return (
            "; a reload takes the settings that the service was started with: change strata.toml,"
            " or restart the service with other flags"
        )
    if other != name and other in known:
        return f"; did you mean {other}?"
    if short in NOT_HERE and "--device" in known:
        return f"; {NOT_HERE[short]}"
    return close_matches(name, known)
