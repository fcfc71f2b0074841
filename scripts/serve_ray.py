"""Serve with replicas under Ray Serve: `pip install 'treeline[ray]'`, then
python scripts/serve_ray.py --config qwen3-8b --replicas 2:8 --port 8000"""

import sys

from server.replicas.command import main

if __name__ == "__main__":
    sys.exit(main())
