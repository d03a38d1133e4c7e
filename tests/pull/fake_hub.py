# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server that behaves like a model hub, with faults on demand, for the tests of `quire pull`."""

import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

COMMIT = "c0ffee" + "0" * 34


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class File:
    """One file of the repository, and what goes wrong with it."""

    def __init__(self, data, large=False):
        self.data = data
        self.large = large
        self.listed_size = None  # a wrong size in the listing
        self.listed_digest = True  # False: the listing states no checksum
        self.wrong_bytes = False  # sends bytes that do not have the stated checksum
        self.cut_after = []  # for each coming request: close the connection after that many bytes
        self.statuses = []  # for each coming request: answer this status instead
        self.ignore_range = False
        self.shift_range = []  # for each coming range: send one that starts that many bytes off
        self.redirect = None  # a URL to redirect the client to
        self.delay = 0.0  # seconds before each piece
        self.stall_after = []  # for each coming request: send nothing more after that many bytes
        self.etag = None  # if None, derived from the bytes
        self.endless = False

    def sha256(self):
        return hashlib.sha256(self.data).hexdigest()

    def digest(self):
        return self.sha256() if self.large else git_sha1(self.data)

    def listing(self, path):
        entry = {"rfilename": path}
        size = len(self.data) if self.listed_size is None else self.listed_size
        if not self.listed_digest:
            return entry
        if self.large:
            return entry | {"size": size, "blobId": "1" * 40, "lfs": {"sha256": self.sha256(), "size": size, "pointerSize": 130}}
        return entry | {"size": size, "blobId": git_sha1(self.data)}


class Hub:
    """The server: `files` by repository, and the log of the requests."""

    def __init__(self):
        self.repositories = {}
        self.token = None  # if set, every request needs it
        self.gated = False
        self.listing_statuses = []  # for each coming listing: answer this status instead
        self.log = []  # (path, headers in lower case)
        self.lock = threading.Lock()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.server.server_address[1]

    def close(self):
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()

    def requests_for(self, part):
        with self.lock:
            return [entry for entry in self.log if part in entry[0]]

    def answer(self, request):
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        with self.lock:
            self.log.append((path, {name.lower(): value for name, value in request.headers.items()}))
        if self.token is not None and request.headers.get("Authorization") != "Bearer " + self.token:
            headers = {"X-Error-Code": "GatedRepo"} if self.gated else {}
            return self.reply(request, 401, b"no", headers)
        listing = re.fullmatch(r"/api/models/(.+)/revision/(.+)", path)
        if listing:
            return self.answer_listing(request, *listing.groups())
        for name, files in self.repositories.items():
            prefix = "/%s/resolve/%s/" % (name, COMMIT)
            if path.startswith(prefix) and path[len(prefix) :] in files:
                return self.answer_file(request, files[path[len(prefix) :]])
        return self.reply(request, 404, b"no")

    def answer_listing(self, request, name, revision):
        if self.listing_statuses:
            return self.reply(request, self.listing_statuses.pop(0), b"no")
        if name not in self.repositories or revision not in ("main", COMMIT):
            return self.reply(request, 404, b"no", {"X-Error-Code": "RepoNotFound"})
        siblings = [file.listing(path) for path, file in self.repositories[name].items()]
        return self.reply(request, 200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

    def answer_file(self, request, file):
        if file.redirect is not None:
            return self.reply(request, 302, b"", {"Location": file.redirect, "X-Linked-Etag": '"%s"' % file.digest()})
        if file.statuses:
            return self.reply(request, file.statuses.pop(0), b"no", {"Retry-After": "0"})
        data = bytes(len(file.data)) if file.wrong_bytes else file.data
        etag = file.etag or '"%s"' % file.digest()
        start, status, headers = 0, 200, {"ETag": etag, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        fresh = request.headers.get("If-Range", etag) == etag
        if asked and fresh and not file.ignore_range:
            start = int(asked.group(1)) + (file.shift_range.pop(0) if file.shift_range else 0)
            if start >= len(data):
                return self.reply(request, 416, b"", {"Content-Range": "bytes */%d" % len(data)})
            status, headers["Content-Range"] = 206, "bytes %d-%d/%d" % (start, len(data) - 1, len(data))
        cut = file.cut_after.pop(0) if file.cut_after else None
        stall = file.stall_after.pop(0) if file.stall_after else None
        self.send(request, status, headers, data[start:], file, cut, stall)

    def send(self, request, status, headers, body, file, cut, stall):
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        if file.endless:
            request.send_header("Connection", "close")
        else:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        sent = 0
        try:
            while not self.stop.is_set() and (sent < len(body) or file.endless):
                if cut is not None and sent >= cut:
                    request.close_connection = True
                    return
                if stall is not None and sent >= stall:
                    self.stop.wait(60)
                    request.close_connection = True
                    return
                limits = [limit - sent for limit in (cut, stall) if limit is not None]
                piece = bytes(4096) if file.endless else body[sent : sent + min([4096] + limits)]
                if file.delay:
                    time.sleep(file.delay)
                request.wfile.write(piece)
                request.wfile.flush()
                sent += len(piece)
        except (BrokenPipeError, ConnectionResetError):
            request.close_connection = True

    def reply(self, request, status, body, headers=None):
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
