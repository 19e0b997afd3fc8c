"""Files: caches stay below their size."""

import os

from phast.data.files import limit_cache


def test_a_cache_forgets_what_was_used_longest_ago(tmp_path):
    (tmp_path / "xla").mkdir()
    for age, name in enumerate(["new", "old", "xla/older"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000.0 - age, 1000.0 - age))
    limit_cache(tmp_path, 300)
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 3
    limit_cache(tmp_path, 250)
    assert [path.name for path in sorted(tmp_path.rglob("*")) if path.is_file()] == ["new", "old"]
    limit_cache(tmp_path, 0)
    limit_cache(tmp_path / "nowhere", 0)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
