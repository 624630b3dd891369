# Packs the code into one file, named by its checksum. Sourced.
# shellcheck shell=bash

# Sets BUNDLE, the file, and CODE, its folder on the hosts, below their home.
make_bundle() {
  local sum
  BUNDLE=$SCRATCH/code.tar.gz
  if [[ -n $DRY_RUN ]]; then
    BUNDLE=agentrl-CODE.tar.gz CODE=agentrl/code-CODE
    written tar -czf "$BUNDLE" -C "$ROOT" 'what git would track'
    return
  fi
  code_files | tar --create --directory="$ROOT" --no-recursion --owner=0 \
    --group=0 --mtime=@0 --null --files-from=- | gzip -n >"$BUNDLE"
  sum=$(cksum <"$BUNDLE" | tr ' ' -)
  mv "$BUNDLE" "$SCRATCH/agentrl-$sum.tar.gz"
  BUNDLE=$SCRATCH/agentrl-$sum.tar.gz
  CODE=agentrl/code-$sum
}

# Lists tracked and untracked files of the working tree, except those that git
# ignores and those that hosts do not need.
code_files() {
  if git -C "$ROOT" rev-parse --git-dir >/dev/null 2>&1; then
    git -C "$ROOT" ls-files -z --cached --others --exclude-standard --deduplicate \
      -- . ':!docs' ':!bench' ':!studies/evidence' |
      while IFS= read -r -d '' file; do
        [[ ! -e $ROOT/$file ]] || printf '%s\0' "$file"
      done
  else
    (cd "$ROOT" && find agentrl_jax configs environments launch setup.py \
      -name __pycache__ -prune -o -type f -print0)
  fi | LC_ALL=C sort -z
}
