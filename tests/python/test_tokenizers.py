"""`prism lm tokenizer` token for token against Hugging Face's tokenizers and SentencePiece's own package."""

import json
import os
import subprocess
from pathlib import Path

import pytest

CLI = Path(os.environ.get("PRISM_CLI", "build/release/bin/prism"))
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

TRAINING = (
    [
        "The quick brown fox jumps over the lazy dog; it's 1234567 times, isn't it? I'LL say WE'VE seen.\n\n",
        "Größe und Länge, naïve café, coöperate, straße. Привет, мир! Ещё раз: мир.\n",
        "日本語のテキストと中文文本，한국어 텍스트。 مرحبا بالعالم שלום עולם हिन्दी पाठ ภาษาไทย\n",
        "🙂👩‍👩‍👧‍👦🏳️‍🌈 emoji 🇩🇪\tfor (int i = 0; i < 10; ++i) {\n    x[i] += 1e-3;  // code\n}\n",
    ]
    * 30
)

TEXTS = TRAINING[:4] + [
    " ",
    "a",
    "  two  blanks,\ttabs\t\t and\n\nlines \n \r\n\r\n end   ",
    "I'll say we've DON'T it's 'S 's 'ſ 'Re THEY'RE",
    "cafe\u0301 e\u0301 \u1e9b\u0323 \uac00 \u1100\u1161 \u212b ngstrom",
    "\u00a0nbsp\u2003em\u180emvs\u2028line\u0085nel\u3000wide\u200bzero\ufeffbom",
    "12345678901234567890 1,234.5678 ½ ² ٣٤٥ Ⅷ",
    "nul\0byte \x01\x1f\x7f",
    "before<|endoftext|>after <|endoftext|>  <|endoftext|",
    "a" * 300 + " " * 70 + "\n" * 9 + "x",
    "def f(x):\n\treturn {'a': [1, 2.5e-3], \"b\": None}\n\n\n# ünïcode_idént = 'Ω≈ç√∫'\n",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0001f9d1\u200d\U0001f680 👍🏽 z̷̢̧a̷l̴g̵o",
]


def prism(*words):
    done = subprocess.run([CLI, "lm", "tokenizer", *map(str, words), "--json", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ids_of(tokenizer, text, folder):
    file = folder / "text.txt"
    file.write_bytes(text.encode())
    return prism("show", tokenizer, "--text", file)["ids"]


def hugging_face(folder, pattern, nfc=False, ignore_merges=False):
    """A tokenizer.json with a public model's pre-tokeniser, trained on TRAINING."""
    tokenizers = pytest.importorskip("tokenizers", reason="skipped: no tokenizers package")
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = byte_level
    if pattern is not None:
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return tokenizer, file


@pytest.mark.parametrize(
    "settings",
    [
        dict(pattern=None),
        dict(pattern=GPT2),
        dict(pattern=LLAMA3, ignore_merges=True),
        dict(pattern=QWEN, nfc=True),
    ],
    ids=["gpt2", "gpt2-split", "llama3", "qwen"],
)
def test_byte_level_bpe(settings, tmp_path):
    theirs, file = hugging_face(tmp_path, **settings)
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ids_of(file, text, tmp_path) == expected, repr(text)


def test_our_bpe_is_read_and_repeated_by_theirs(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="skipped: no tokenizers package")
    source, file = tmp_path / "training.txt", tmp_path / "ours.json"
    source.write_bytes("".join(TRAINING).encode())
    shown = prism("train", source, "--vocabulary", 500, "--out", file)
    theirs = tokenizers.Tokenizer.from_file(str(file))
    assert theirs.get_vocab_size() == shown["vocabulary"] == 500
    assert theirs.token_to_id("<|endoftext|>") == shown["end_of_document"]
    for text in TEXTS:
        ids = ids_of(file, text, tmp_path)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        assert theirs.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_models(kind, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece", reason="skipped: no sentencepiece package")
    source, ours = tmp_path / "training.txt", tmp_path / "ours.model"
    source.write_bytes("".join(TRAINING).encode())
    prism("train", source, "--kind", f"sentencepiece_{kind}", "--vocabulary", 520, "--out", ours)
    sentencepiece.SentencePieceTrainer.train(
        input=str(source), model_prefix=str(tmp_path / "theirs"), vocab_size=520, model_type=kind,
        byte_fallback=True, character_coverage=0.9995, minloglevel=2, hard_vocab_limit=False,
    )
    for model in [ours, tmp_path / "theirs.model"]:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        for text in TEXTS:
            if "\0" in text:
                continue  # their Python package cuts texts at it
            ids = ids_of(model, text, tmp_path)
            assert ids == processor.encode(text), repr(text)
            if model == ours:
                assert processor.decode(ids) == text
