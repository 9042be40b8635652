"""Help of every command, the page that lists them all, and lazy loading."""

import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from delaymq.cli.app import COMMANDS
from delaymq.cli.docs_page import commands, options_of, with_commands
from delaymq.cli.lazy import Group, Leaf
from delaymq.cli.servers.serve import ABOUT, parser
from delaymq_testing.cli_running import called, command

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "commands.md"
LEAVES = {
    (name, *inner): leaf
    for name, entry in COMMANDS.items()
    for inner, leaf in (
        [((each,), leaf) for each, leaf in entry.commands.items()] if isinstance(entry, Group) else [((), entry)]
    )
}
GROUPS = [name for name, entry in COMMANDS.items() if isinstance(entry, Group)]


@pytest.mark.parametrize("words", [words for words in LEAVES if words[0] not in ABOUT], ids=" ".join)
def test_every_command_has_a_descriptive_help(words: tuple[str, ...]) -> None:
    done = called(*words, "--help")
    assert (done.code, done.err) == (0, "")
    assert " ".join(words) in done.out
    assert len(done.out.splitlines()) > 4
    assert called(*words, "-h") == done


@pytest.mark.parametrize("words", [(), *((group,) for group in GROUPS)], ids=str)
def test_command_groups_have_both_help_options(words: tuple[str, ...]) -> None:
    assert called(*words, "-h") == called(*words, "--help")
    assert called(*words, "-h").code == 0


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_lists_its_commands_with_and_without_help(group: str) -> None:
    entry = COMMANDS[group]
    assert isinstance(entry, Group)
    shown = called(group, "--help")
    assert shown.code == 0
    assert all(f"  {name} " in shown.out for name in entry.commands)
    assert all(f"  {name} " in called(group).err + called(group).out for name in entry.commands)


def test_mistyped_command_gets_a_suggestion() -> None:
    done = called("topc", "list")
    assert (done.code, "Did you mean 'topic'?" in done.err) == (2, True)
    done = called("topic", "lst")
    assert (done.code, "Did you mean 'list'?" in done.err) == (2, True)


@pytest.mark.parametrize(("words", "leaf"), [each for each in LEAVES.items() if each[1].text], ids=str)
def test_list_and_help_of_a_command_agree(words: tuple[str, ...], leaf: Leaf) -> None:
    module, _, name = leaf.target.partition(":")
    told = inspect.getdoc(getattr(import_module(f"delaymq.cli.commands.{module}"), name)) or ""
    assert told.splitlines()[0] == leaf.text
    if words[0] in ABOUT:
        assert leaf.text == ABOUT[words[0]]


def test_command_page_has_every_command_and_option() -> None:
    assert PAGE.read_text() == with_commands(PAGE.read_text()), "run `make docs`"


def test_command_page_is_complete() -> None:
    sections = dict(part.split("\n", 1) for part in PAGE.read_text().split("### delaymq ")[1:])
    assert set(sections) == {" ".join(words) for words in LEAVES}
    for name, made in commands():
        missing = [option for option in options_of(made) if option.startswith("-") and option not in sections[name]]
        assert (name, missing) == (name, [])
    for name in ABOUT:
        assert all(word in sections[name] for word in parser(name).format_help().split() if word.startswith("--l"))


def test_each_command_of_the_page_links_to_its_module() -> None:
    for section in PAGE.read_text().split("### delaymq ")[1:]:
        (target,) = re.findall(r"^Code: \[`\S+`\]\((\S+)\)$", section, re.MULTILINE)
        text = (PAGE.parent / target).read_text()
        name = section.partition("\n")[0]
        words = tuple(name.split())
        function = LEAVES[words].target.partition(":")[2] if name not in ABOUT else "parser"
        assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), name


def test_json_examples_of_the_page_match_the_output() -> None:
    text = PAGE.read_text()
    source = Path(inspect.getfile(import_module("delaymq.cli.views.message_text"))).read_text()
    for name in ("offsetMessageId", "physicalOffset", "latenessMs", "bodyBase64"):
        assert f"`{name}`" in text
        assert f'"{name}"' in source


def test_list_of_commands_loads_no_command() -> None:
    program = (
        "import sys; from delaymq.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'delaymq.client', 'delaymq.broker', 'delaymq.store', 'delaymq.protocol', 'rich', 'asyncio'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [(["topic", "list"], "typer", "cli"), (["standalone"], "uvloop", "server"), (["topic", "list"], "msgspec", "cli")],
)
def test_distribution_without_extras_says_what_to_install(
    words: list[str], missing: str, extra: str, tmp_path: Path
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from delaymq.cli.main import main; main({words!r})"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.endswith(f"delaymq: this command requires {missing}: install 'delaymq[{extra}]'\n")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(wanted.startswith(missing) for wanted in project["optional-dependencies"][extra])


@pytest.mark.parametrize(
    "module", ["commands.delay.status", "commands.delay.watch", "commands.message", "commands.context"]
)
def test_http_commands_load_no_client(module: str) -> None:
    program = f"import sys, delaymq.cli.{module}; sys.exit('delaymq.client' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_shell_completion_scripts_and_completions_work() -> None:
    for shell in ("bash", "zsh", "fish"):
        shown = called("completion", "show", "--shell", shell)
        assert (shown.code, "_DELAYMQ_COMPLETE" in shown.out) == (0, True)
    asked = command(environment={"_DELAYMQ_COMPLETE": "complete_bash", "COMP_WORDS": "delaymq to", "COMP_CWORD": "1"})
    assert asked.stdout.split() == ["topic"]
    asked = command(
        environment={"_DELAYMQ_COMPLETE": "complete_bash", "COMP_WORDS": "delaymq topic s", "COMP_CWORD": "2"}
    )
    assert asked.stdout.split() == ["show"]
    refused = called("completion", "show", "--shell", "nonsense")
    assert (refused.code, "'--shell': 'nonsense' is not one of 'bash'" in refused.err) == (2, True)


def test_completion_is_installed_in_the_shells_start_file_on_request(tmp_path: Path) -> None:
    done = command("completion", "install", "--shell", "bash", environment={"HOME": str(tmp_path)})
    assert done.returncode == 0
    assert "delaymq" in (tmp_path / ".bashrc").read_text()
