"""A recipe of tones with two small systems, for the tests of what recipes do."""

from __future__ import annotations

from pathlib import Path

from asr.recipe import Experiment, load_recipe

RECIPE = '''"""Words as tones: a corpus of this test."""
from pathlib import Path
from asr.data import read_manifest, write_manifest

from asr.recipe import Recipe

def prepare(corpus_dir, output_dir):
    for split, source in (("train", "train"), ("dev", "dev"), ("test", "dev")):
        utterances = list(read_manifest(Path("{tones}") / f"{{source}}.jsonl"))
        if split == "test":
            utterances[0] = utterances[0].model_copy(update={{"extras": {{"reference_2": utterances[0].text}}}})
        write_manifest(output_dir / f"{{split}}.jsonl", utterances)

RECIPE = Recipe(license="public domain", hours=0.01, prepare=prepare, synthetic=True, {fields})
'''

COMMON = """
output_dir: runs/tones/{name}
data: {{train: data/tones/train.jsonl, dev: data/tones/dev.jsonl}}
features: {{num_mels: 20, cmvn: utterance}}
batches: {{max_seconds: 40, max_utterances: 4, num_workers: 0}}
optim: {{learning_rate: 3e-3, warmup_steps: 3}}
train: {{steps: 4, precision: float32, device: cpu, validate_every: 2, save_every: 2, log_every: 1, keep_best: 2}}
"""

SYSTEMS = {
    "ctc_lstm": """
model:
  encoder: {type: lstm, dim: 16, num_layers: 1, subsampling: {channels: 4}}
  decoder: null
  ctc_weight: 1.0
""",
    "transformer": """
model:
  encoder: {type: transformer, dim: 16, num_layers: 1, num_heads: 2, feed_forward_dim: 16, subsampling: {channels: 4}}
  decoder: {type: transformer, dim: 16, num_layers: 1, num_heads: 2, feed_forward_dim: 16}
  guided_attention: {loss: {}}
""",
}


def write_tones_recipe(folder: Path, tones: Path, fields: str = "") -> Path:
    """recipes/tones and conf/tones below `folder`, with more fields of the recipe; returns the folder of recipes."""
    recipe = folder / "recipes" / "tones" / "recipe.py"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(RECIPE.format(tones=tones, fields=fields), encoding="utf-8")
    for name, model in SYSTEMS.items():
        write_conf(folder, name, COMMON.format(name=name) + model)
    return recipe.parents[1]


def write_conf(folder: Path, name: str, text: str) -> Path:
    path = folder / "conf" / "tones" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def make_experiment(recipes_dir: Path, **wanted: object) -> Experiment:
    return Experiment(load_recipe("tones", recipes_dir), **wanted)  # type: ignore[arg-type]
