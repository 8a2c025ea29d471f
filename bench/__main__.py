"""`python -m bench` lists the benchmarks; `python -m bench NAME [ARGS]` runs one."""

import importlib
import pkgutil
import sys

import bench


def main() -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if not m.name.startswith("_"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print("usage: python -m bench NAME [ARGS]\n")
        for name in names:
            doc = importlib.import_module(f"bench.{name}").__doc__ or ""
            print(f"  {name:<12} {doc.strip().splitlines()[0]}")
        return 2
    name = sys.argv.pop(1)
    code: int = importlib.import_module(f"bench.{name}").main()
    return code


sys.exit(main())
