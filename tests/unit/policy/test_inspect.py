"""What is refused before a process starts, by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from contracts.checkpoints import CheckpointReport
from policy.inspect import inspect_checkpoint, main
from tests.models import KINDS, build_model
from weights.tensors import INDEX_FILE, Tensor, Tensors, read_safetensors, write_safetensors

FILE = "model.safetensors"
EXPERT = "model.layers.0.mlp.experts.{}.gate_proj.weight"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints by kind, built once; not to be changed."""
    folder = tmp_path_factory.mktemp("models")

    def of_kind(name: str) -> Path:
        kind, _, sharded = name.partition("/")
        made = folder / name.replace("/", "-")
        return made if made.exists() else build_model(kind, made, sharded=bool(sharded))

    return of_kind


@pytest.mark.parametrize("sharded", ["", "/sharded"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_good_checkpoint_is_described(built: Callable[[str], Path], kind: str, sharded: str) -> None:
    folder = built(kind + sharded)
    tensors = read_safetensors(folder)

    report = inspect_checkpoint(folder)

    assert report.problems == []
    assert report.published_as == {}
    assert report.num_tensors == len(tensors)
    assert report.num_weights == sum(int(np.prod(tensor.shape)) for tensor in tensors.values())
    assert report.dtypes == {"BF16": len(tensors)}
    assert (report.context, report.vocabulary) == (512, 704)
    assert report.is_paged is (kind not in {"lfm2", "mamba2"})
    assert (report.is_mixture, report.num_expert_layers) == ((True, 2) if kind == "qwen3_moe" else (False, 0))
    layers_with_attention = {"lfm2": 1, "mamba2": 0}.get(kind, 2)
    assert report.cache_elements_per_token == layers_with_attention * 2 * 2 * 16


Damage = Callable[[Path], None]


def changed(folder: Path, change: Callable[[Tensors], None]) -> None:
    tensors = read_safetensors(folder)
    change(tensors)
    write_safetensors(folder / FILE, tensors)


def tensors_changed(change: Callable[[Tensors], None]) -> Damage:
    return lambda folder: changed(folder, change)


def bytes_changed(change: Callable[[bytes], bytes], name: str = FILE) -> Damage:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return write


def config_with(**fields: object) -> Damage:
    return bytes_changed(lambda content: json.dumps({**json.loads(content), **fields}).encode(), "config.json")


def without(name: str) -> Damage:
    return tensors_changed(lambda tensors: tensors.pop(name) and None)


def with_tensor(name: str, like: str) -> Damage:
    return tensors_changed(lambda tensors: tensors.update({name: tensors[like]}))


def with_dtype(name: str, dtype: str, width: int) -> Damage:
    def change(tensors: Tensors) -> None:
        shape = tensors[name].shape
        tensors[name] = Tensor(dtype, shape, np.zeros(int(np.prod(shape)) * width, np.uint8))

    return tensors_changed(change)


def experts_from_one(tensors: Tensors) -> None:
    """The indices of the experts begin at 1."""
    for name in [name for name in tensors if ".experts." in name]:
        head, _, rest = name.partition(".experts.")
        number, _, tail = rest.partition(".")
        tensors[f"{head}.experts.moved.{int(number) + 1}.{tail}"] = tensors.pop(name)
    for name in [name for name in tensors if ".moved." in name]:
        tensors[name.replace(".moved.", ".")] = tensors.pop(name)


def one_more_expert(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".layers.0.mlp.experts.3." in name]:
        tensors[name.replace(".experts.3.", ".experts.4.")] = tensors[name]


def missing_shard(folder: Path) -> None:
    max(folder.glob("model-*.safetensors")).unlink()


def same_tensor_in_two_shards(folder: Path) -> None:
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    one, two = read_safetensors(first), read_safetensors(second)
    name = next(iter(one))
    write_safetensors(second, {**two, name: one[name]})


def shard_without_a_tensor(folder: Path) -> None:
    shard = min(folder.glob("model-*.safetensors"))
    tensors = read_safetensors(shard)
    tensors.pop(next(iter(tensors)))
    write_safetensors(shard, tensors)


def named_twice(content: bytes) -> bytes:
    return content.replace(b'"model.layers.1.input_layernorm.weight"', b'"model.layers.0.input_layernorm.weight"')


def other_tokenizer(content: bytes) -> bytes:
    tokenizer = json.loads(content)
    tokenizer["model"]["vocab"]["of another model"] = 704
    return json.dumps(tokenizer).encode()


def not_finite(name: str, place: int, word: int, dtype: str = "BF16") -> Damage:
    """Sets one element of a tensor, counted flat, to these bits."""

    def change(tensors: Tensors) -> None:
        tensor = tensors[name]
        words = tensor.data.view("<u2").astype("<u4") << 16 if dtype == "F32" else tensor.data.view("<u2").copy()
        words[place] = word
        tensors[name] = Tensor(dtype, tensor.shape, words.view(np.uint8))

    return tensors_changed(change)


def renamed(old: str, new: str) -> Damage:
    def change(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new, 1)] = tensors.pop(name)

    return tensors_changed(change)


def ends_by_config(token: int) -> Damage:
    def change(folder: Path) -> None:
        (folder / "generation_config.json").unlink(missing_ok=True)
        config_with(eos_token_id=token)(folder)

    return change


def generates_with(**fields: object) -> Damage:
    return bytes_changed(lambda _: json.dumps(fields).encode(), "generation_config.json")


def adapter(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / FILE).rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')


def moved_into_a_subfolder(folder: Path, *, weights: bool = True) -> None:
    inside = folder / "huggingface"
    inside.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.rename(inside / path.name)
    if not weights:
        (inside / FILE).rename(folder / "model_world_size_1_rank_0.pt")


Bad = tuple[str, Damage, str, str]
BAD: list[Bad] = [
    ("llama", lambda folder: (folder / "config.json").unlink(), "not_found", "config.json"),
    ("llama", bytes_changed(lambda _: b"{", "config.json"), "unreadable_config", "config.json"),
    ("llama", config_with(model_type="never_heard_of"), "unknown_architecture", "never_heard_of"),
    ("llama", config_with(hidden_size="wide"), "unknown_architecture", "hidden_size"),
    ("llama", config_with(model_type="bert", architectures=["BertModel"]), "not_a_text_model", "BertModel"),
    ("llama", config_with(architectures=["LlamaForSequenceClassification"]), "not_a_text_model", "Classification"),
    ("llama", config_with(model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"]), "not_a_text_model", "Gemma3"),
    ("llama", config_with(auto_map={"AutoModel": "own.Own"}), "custom_code", "auto_map"),
    ("llama", config_with(quantization_config={"quant_method": "fp8"}), "quantised", "quantised"),
    ("llama", lambda folder: (folder / FILE).unlink(), "not_found", "safetensors"),
    ("llama", without("model.layers.1.mlp.up_proj.weight"), "missing_tensor", "model.layers.1.mlp.up_proj.weight"),
    ("llama", with_tensor("model.layers.9.extra", "model.norm.weight"), "unknown_tensor", "model.layers.9.extra"),
    ("llama", config_with(intermediate_size=256), "wrong_shape", "mlp"),
    ("llama", config_with(num_hidden_layers=1), "unknown_tensor", "model.layers.1"),
    ("llama", not_finite("model.norm.weight", 63, 0x7FC0), "not_finite", "model.norm.weight holds NaN at [63]"),
    ("llama", not_finite("model.embed_tokens.weight", 64 * 700 + 2, 0xFF80), "not_finite", "infinity at [700, 2]"),
    ("llama", not_finite("lm_head.weight", 1, 0x7F7FFFFF, "F32"), "not_finite", "lm_head.weight holds a number that BF16 rounds"),
    ("llama", renamed("", "_orig_mod."), "wrapped_names", "21 of 21 tensors have `_orig_mod.` in their names"),
    ("llama", renamed("layers.", "layers._fsdp_wrapped_module."), "wrapped_names", "while FSDP wrapped it"),
    ("llama", renamed("", "base_model.model."), "wrapped_names", "merge_and_unload"),
    ("llama", renamed("", "module."), "wrapped_names", "DeepSpeed"),
    ("llama", generates_with(eos_token_id=[1, 704]), "wrong_eos", "generation_config.json has the eos_token_id 704"),
    ("llama", ends_by_config(9999), "wrong_eos", "config.json has the eos_token_id 9999"),
    ("llama", adapter, "adapter", "an adapter of peft (LORA) for org/base"),
    ("llama", moved_into_a_subfolder, "wrong_folder", "huggingface does: give that folder instead"),
    ("llama", partial(moved_into_a_subfolder, weights=False), "wrong_folder", "verl.model_merger"),
    ("llama", with_dtype("model.norm.weight", "F8_E4M3", 1), "wrong_dtype", "model.norm.weight is F8_E4M3"),
    ("llama", with_dtype("model.norm.weight", "I64", 8), "wrong_dtype", "model.norm.weight is I64"),
    ("llama", bytes_changed(lambda content: content.replace(b'"BF16"', b'"BF17"', 1)), "unknown_dtype", "BF17"),
    ("llama", bytes_changed(lambda content: content[:-100]), "truncated", FILE),
    ("llama", bytes_changed(lambda content: content[:50]), "truncated", FILE),
    ("llama", bytes_changed(lambda content: content[:8] + bytes(32) + content[40:]), "not_safetensors", FILE),
    ("llama", bytes_changed(named_twice), "not_safetensors", "named twice"),
    ("llama", bytes_changed(other_tokenizer, "tokenizer.json"), "wrong_tokenizer", "704"),
    ("llama", bytes_changed(lambda _: b"{}", "tokenizer.json"), "no_tokenizer", "tokenizer.json"),
    ("mamba2", config_with(max_position_embeddings=None), "unknown_context", "max_position_embeddings"),
    ("qwen3_moe/sharded", missing_shard, "truncated", "not beside it"),
    ("qwen3_moe/sharded", same_tensor_in_two_shards, "duplicate_tensor", "another shard"),
    ("qwen3_moe/sharded", shard_without_a_tensor, "truncated", "lack 1 tensors"),
    ("qwen3_moe/sharded", bytes_changed(lambda _: b"\xff\xfe{", INDEX_FILE), "not_safetensors", "index"),
    ("qwen3_moe", without(EXPERT.format(3)), "missing_tensor", EXPERT.format(3)),
    ("qwen3_moe", tensors_changed(experts_from_one), "missing_tensor", "experts.0."),
    ("qwen3_moe", tensors_changed(one_more_expert), "unknown_tensor", "experts.4."),
    ("qwen3_moe", config_with(num_local_experts=8), "missing_tensor", "experts.4."),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad[0]}-{bad[2]}-{bad[3]}")
def test_a_bad_checkpoint_is_refused_by_name(built: Callable[[str], Path], tmp_path: Path, bad: Bad) -> None:
    kind, damage, code, named = bad
    folder = shutil.copytree(built(kind), tmp_path / "model")
    damage(folder)
    problems = inspect_checkpoint(folder).problems
    assert [problem.code for problem in problems] == [code]
    assert named in problems[0].message


def test_a_tie_that_is_on_disk_twice_is_published_once(built: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(built("qwen3"), tmp_path / "model")
    with_tensor("lm_head.weight", "model.embed_tokens.weight")(folder)
    report = inspect_checkpoint(folder)
    assert report.problems == []
    assert report.published_as == {"lm_head.weight": ""}


def test_a_tie_that_is_on_disk_under_its_copys_name_gets_the_name_of_its_source(
    built: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(built("qwen3"), tmp_path / "model")
    with_tensor("lm_head.weight", "model.embed_tokens.weight")(folder)
    without("model.embed_tokens.weight")(folder)
    report = inspect_checkpoint(folder)
    assert report.problems == []
    assert report.published_as == {"lm_head.weight": "model.embed_tokens.weight"}


def test_heads_that_differ_are_no_tie(built: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(built("qwen3"), tmp_path / "model")

    def differ(tensors: Tensors) -> None:
        tied = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = tied._replace(data=np.roll(tied.data, 2))

    changed(folder, differ)
    report = inspect_checkpoint(folder)
    assert report.problems == []
    assert report.published_as == {}
    assert report.num_tensors == len(read_safetensors(folder))


@pytest.mark.slow
def test_the_report_is_printed_as_json(
    built: Callable[[str], Path], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """By a process of its own under `millrace init`: see `tests/unit/commands/test_wheel.py`."""
    main(built("qwen3_moe"))
    report = msgspec.json.decode(capsysbinary.readouterr().out, type=CheckpointReport)
    assert report.architecture == "Qwen3MoeForCausalLM"
    assert report.problems == []
