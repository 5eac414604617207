from attacked import attacked, rows


def test_a_clean_run_raises_nothing(warm, tmp_path):
    found = rows(attacked(warm, tmp_path / "run"))
    assert [row for row in found.values() if row.result == "fail"] == []
