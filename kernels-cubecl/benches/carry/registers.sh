#!/usr/bin/env bash
# usage: registers.sh FOLDER PTXAS [FILE..]: what the assembler says of each PTX file in a folder, in a file beside it.
set -u
folder=$1 ptxas=$2
shift 2
if [ $# = 0 ]; then
  find "$folder" -name '*.ptx' -print0 | xargs -0 -r -P "$(nproc)" -n 8 "$0" "$folder" "$ptxas"
  exit
fi
for file; do
  arch=$(sed -n 's/^\.target \([a-z0-9_]*\).*/\1/p' "$file")
  [ -s "$file.log" ] || "$ptxas" -arch="$arch" -v "$file" -o /dev/null >"$file.log" 2>&1
done
