"""python -m disc_tf_server"""

from disc_tf_server.cli import main

raise SystemExit(main())
