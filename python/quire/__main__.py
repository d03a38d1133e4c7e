# SPDX-License-Identifier: Apache-2.0
"""The command `quire`, also as `python -m quire`: replaces this process by the program inside the package."""

import os
import pathlib
import ssl
import sys

# Where the libcurl in the wheel looks for certificates, as on Debian.
DEBIAN_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def main() -> None:
    program = pathlib.Path(__file__).parent / "bin" / "quire"
    certificates = ssl.get_default_verify_paths().cafile
    if certificates and not os.path.exists(DEBIAN_CERTIFICATES):
        os.environ.setdefault("CURL_CA_BUNDLE", certificates)
    os.execv(program, ["quire", *sys.argv[1:]])


if __name__ == "__main__":
    main()
