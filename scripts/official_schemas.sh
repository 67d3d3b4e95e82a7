#!/usr/bin/env bash
# Puts the official schemas of SARIF and speedscope files, as two npm packages ship them, into a
# folder, and prints the settings that make the tests use them.
set -euo pipefail
mkdir -p "$1"
cd "$1"
npm pack --silent @microsoft/jest-sarif@1.0.0-beta.0 speedscope@1.25.0 >/dev/null
tar -xOf microsoft-jest-sarif-*.tgz package/lib/schemas/sarif-2.1.0-rtm.5.json > sarif.json
tar -xOf speedscope-*.tgz package/dist/release/file-format-schema.json > speedscope.json
echo "export TDIAG_SARIF_SCHEMA=$PWD/sarif.json TDIAG_SPEEDSCOPE_SCHEMA=$PWD/speedscope.json"
