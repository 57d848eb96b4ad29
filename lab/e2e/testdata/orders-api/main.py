# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

from fastapi import FastAPI

app = FastAPI()


@app.get("/health")
def health():
    return "ok"
