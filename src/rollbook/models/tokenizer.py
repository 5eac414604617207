"""Text to ids and back: a `tokenizer.json` and its chat template, rendered as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import meta
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rollbook.records import Message, ModelError, digest

TURN_END = "<|im_end|>"
TURN_START = "<|im_start|>"
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


class ChatTokenizer:
    """A tokenizer with its chat template.

    `stop_ids` end a turn. `digest` and `template_digest` are SHA-256 of the tokenizer file's and the template's text.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, *, stop: Sequence[str], specials: Mapping[str, str]):
        self._tokenizer = tokenizer
        self._plain: Tokenizer | None = None
        self.template = template
        self.specials = dict(specials)
        self.digest = digest(tokenizer.to_str().encode())
        self.template_digest = digest(template.encode())
        ids = {name: tokenizer.token_to_id(name) for name in stop}
        missing = [name for name, token in ids.items() if token is None]
        if missing:
            raise ModelError("the tokenizer lacks its own end-of-turn token", got=", ".join(missing),
                             why="generation would never stop by itself")
        self.stop_ids = frozenset(ids.values())
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise ModelError("the chat template cannot be read", got=str(error)) from error

    @property
    def describes_tools(self) -> bool:
        """Whether the template has words of its own for tools."""
        return "tools" in meta.find_undeclared_variables(self._template.environment.parse(self.template))

    @property
    def vocab(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """The template's text of a conversation."""
        plain = [{"role": m.role, "content": m.content} for m in messages]
        try:
            return self._template.render(messages=plain, add_generation_prompt=generation_prompt, **self.specials)
        except TemplateError as error:
            roles = ", ".join(m.role for m in messages)
            raise ModelError("the model's chat template refuses the conversation", got=f"{error} for messages of {roles}",
                             why="some models know no system message", fix='set tasks.system_prompt to ""') from error

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids up to and including the generation prompt."""
        return self.encode(self.render(messages, generation_prompt=True))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, nothing added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of a text in which the names of special tokens are text: what a tool returns can open no turn."""
        if self._plain is None:
            self._plain = Tokenizer.from_str(self._tokenizer.to_str())
            self._plain.encode_special_tokens = True
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def token_id(self, name: str) -> int | None:
        """The id of a token by its name; None where there is none."""
        found: int | None = self._tokenizer.token_to_id(name)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens shown; one final end-of-turn token is left out."""
        kept = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        return self._tokenizer.decode(kept, skip_special_tokens=False)

    def whole(self, ids: Sequence[int]) -> str:
        """Text of all ids, special tokens shown."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def token_text(self, token: int) -> str:
        """The text of one token, for display."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """The files transformers' AutoTokenizer reads."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        document = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": self.template, **self.specials,
                    "clean_up_tokenization_spaces": False, "model_max_length": 1_000_000}
        (folder / "tokenizer_config.json").write_text(json.dumps(document, indent=1, sort_keys=True))


    def document(self) -> bytes:
        """Everything the tokenizer is made of, for a record that must outlive the model folder; `from_document` reads it."""
        stop = sorted(name for name in map(self._tokenizer.id_to_token, self.stop_ids) if name)
        return json.dumps({"tokenizer": self._tokenizer.to_str(), "template": self.template, "stop": stop,
                           "specials": self.specials}, sort_keys=True).encode()

    @classmethod
    def from_document(cls, document: bytes) -> ChatTokenizer:
        """The tokenizer that `document` described."""
        parts = json.loads(document)
        return cls(Tokenizer.from_str(parts["tokenizer"]), parts["template"], stop=parts["stop"], specials=parts["specials"])


def _raise(message: str) -> None:
    raise TemplateError(message)


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """The tokenizer of a model folder; its end of turn is the `eos_token`."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError("the model folder has no tokenizer.json", got=str(folder), fix="save the model with a fast tokenizer")
    config = json.loads((folder / "tokenizer_config.json").read_text()) if (folder / "tokenizer_config.json").is_file() else {}
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text() if template_file.is_file() else config.get("chat_template")
    if not isinstance(template, str):
        raise ModelError("the model has no chat template", got=str(folder),
                         why="prompts could not be rendered as at serving time",
                         fix="use an instruct model, or put a chat_template.jinja into the folder")
    specials = {key: _text(config[key]) for key in ("bos_token", "eos_token", "pad_token", "unk_token") if config.get(key)}
    eos = specials.get("eos_token")
    if eos is None:
        raise ModelError("the tokenizer names no eos_token", got=str(folder), why="nothing would end a turn")
    return ChatTokenizer(Tokenizer.from_file(str(file)), template, stop=_stops(folder, eos), specials=specials)


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)


def _stops(folder: Path, eos: str) -> list[str]:
    """The eos token and every further end token that generation_config.json names."""
    file = folder / "generation_config.json"
    ids = json.loads(file.read_text()).get("eos_token_id", []) if file.is_file() else []
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = [tokenizer.id_to_token(i) for i in (ids if isinstance(ids, list) else [ids])]
    return list(dict.fromkeys([eos, *(name for name in names if name)]))


def byte_tokenizer() -> ChatTokenizer:
    """256 bytes, the ChatML marks and the reasoning and box marks as whole tokens: for models trained from scratch."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(TURN_START, special=True), AddedToken(TURN_END, special=True)])
    marks = ["<think>", "</think>", "\\boxed{", "user\n", "assistant\n", "system\n"]
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return ChatTokenizer(tokenizer, CHATML, stop=[TURN_END],
                         specials={"bos_token": TURN_START, "eos_token": TURN_END, "pad_token": TURN_END})
