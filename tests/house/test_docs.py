"""The papers say what the code does: the map of rooms, the settings, and files that name no host and no machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from tests.house import rooms

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "governance" / "settings.py"

# Put together here so that this file does not name them either.
REGISTRY_HOSTS = [
    f"{name}.{end}"
    for name, end in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("crates", "io"),
        ("proxy.golang", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("maven.apache", "org"),
        ("maven", "org"),
        ("deb.debian", "org"),
        ("security.debian", "org"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w./:-])/(?:work|root|home)/[\w.]")


def tracked() -> list[Path]:
    """What is committed or about to be; never what .gitignore leaves out."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    return [file for name in listing.decode().split("\0") if name and (file := ROOT / name).is_file()]


def text_of(file: Path) -> str:
    """Empty for what is not text, such as a screenshot."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def setting_names() -> set[str]:
    """Every TWOKEYS_ variable that the settings module names or derives from a field."""
    tree = ast.parse(SETTINGS.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "Settings":
            fields = [
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            ]
            names |= {f"TWOKEYS_{field.upper()}" for field in fields}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"^TWOKEYS_[A-Z0-9_]*[A-Z0-9]$", node.value))
    return names


def test_the_readmes_map_of_rooms_is_the_one_of_the_modules() -> None:
    """A reader who follows the map finds the room; `make rooms` writes it."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if rooms.BEGIN not in text:
        return  # a README without a map has nothing that could be wrong
    assert text == rooms.written(text, ROOT), "README.md shows an older tree: run `make rooms`"


def test_every_setting_is_in_the_documentation() -> None:
    """An operator can look up every variable that the product reads."""
    papers = "\n".join(text_of(file) for file in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if file.is_file())
    names = setting_names()
    assert names
    missing = [name for name in sorted(names) if not re.search(rf"\b{name}\b", papers)]
    assert not missing, f"in neither README.md nor docs/: {', '.join(missing)}"


def test_no_file_names_a_registry_host_or_a_machine_path() -> None:
    """The repository builds anywhere: where packages come from is the business of the machine."""
    found = []
    for file in tracked():
        for number, line in enumerate(text_of(file).splitlines(), 1):
            hosts = [host for host in REGISTRY_HOSTS if host in line]
            found += [f"{file.relative_to(ROOT)}:{number}: {what}" for what in [*hosts, *MACHINE_PATH.findall(line)]]
    assert not found, "\n" + "\n".join(found)


def test_requirements_carry_hashes_and_no_address() -> None:
    """What is installed is what was looked at, from wherever the machine gets it."""
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        pins = re.findall(r"^[a-z0-9][^\n]*\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, flags=re.MULTILINE)
        assert text == "".join(pins), f"{file.name} has a line that is no pin with hashes"
        assert all("==" in pin.split("\n")[0] for pin in pins), f"{file.name} has a requirement without a version"


def test_the_requirement_files_agree_with_each_other() -> None:
    """The same package has the same version whatever is installed: `make pins` compiles them from one another."""
    versions: dict[str, set[str]] = {}
    for file in (ROOT / "requirements").glob("*.txt"):
        for name, version in re.findall(
            r"^([a-z0-9-]+)(?:\[[^\]]*\])?==([^ ;]+)", file.read_text(), flags=re.MULTILINE
        ):
            versions.setdefault(name, set()).add(version)
    assert not {name: found for name, found in versions.items() if len(found) > 1}


def test_a_decision_has_a_number_of_its_own() -> None:
    """They are named by it, in other decisions and in notes."""
    numbers = [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")]
    assert len(numbers) == len(set(numbers)), sorted(one for one in numbers if numbers.count(one) > 1)
