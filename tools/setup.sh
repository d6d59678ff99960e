# Sourced by ./shardfit and ./check: install what is missing, build quietly. Messages go to stderr, so
# that the program's own output stays clean.

packages=(
  "g++:compiles the program"
  "cmake:describes the build"
  "ninja-build:runs the build"
  "libyaml-dev:reads YAML"
  "rapidjson-dev:reads and writes JSON"
  "libcli11-dev:reads the command line"
  "libboost-graph-dev:holds the operator graph"
  "libeigen3-dev:solves least squares"
  "doctest-dev:runs the tests"
)
slow_packages=(
  "clang-tidy:checks the code for ./check --slow"
)

say() { echo "shardfit: $*" >&2; }

# install_missing NAME:REASON... installs those of the Debian packages that are not there.
install_missing() {
  local entry status missing=() present
  command -v dpkg-query >/dev/null || { say "no Debian packages here; using what is installed"; return 0; }
  present=" $(dpkg-query -W -f='${Package}=${db:Status-Status} ' "${@%%:*}" 2>/dev/null || true)"
  for entry in "$@"; do
    [[ $present == *" ${entry%%:*}=installed "* ]] && continue
    say "installing ${entry%%:*}: it ${entry#*:}"
    missing+=("${entry%%:*}")
  done
  ((${#missing[@]})) || return 0
  local apt=(apt-get)
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { say "run as root or install sudo, or: apt-get install ${missing[*]}"; return 1; }
    apt=(sudo apt-get)
  fi
  local log=build/install.log
  mkdir -p build 2>/dev/null && : 2>/dev/null >"$log" || log=$(mktemp)
  if ! { "${apt[@]}" -q update && DEBIAN_FRONTEND=noninteractive \
         "${apt[@]}" -q -y --no-install-recommends install "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    say "apt-get failed (all of it: $log)"
    return 1
  fi
}

# What a build is made from; folders too, whose times tell of files that came or went.
sources=(CMakeLists.txt CMakePresets.json calibrate model_specs planner tests tools)

# up_to_date PRESET TARGET: whether nothing has changed since its last build began.
up_to_date() {
  local built=build/$1/.built-$2 newer
  [[ -f $built && -x build/$1/$2 ]] || return 1
  newer=$(find "${sources[@]}" -newer "$built" -print -quit 2>/dev/null) && [[ -z $newer ]]
}

# build PRESET TARGET...: configures where the presets are new, then builds what changed; one build at a time.
build() {
  local preset=$1 folder=build/$1 target
  shift
  if ! mkdir -p "$folder" 2>/dev/null || [[ ! -w $folder ]]; then
    say "$PWD/$folder cannot be written, and the program there is missing or older than its sources:"
    say "build it once as the owner of this folder (./shardfit), or copy the folder to one of your own"
    return 1
  fi
  local log=$folder/build.log
  exec 9>"$folder/.lock"
  flock 9
  : >"$folder/.begun"
  [[ -f $folder/build.ninja ]] || say "building into $folder; the first time takes some minutes"
  if ! { { [[ $folder/build.ninja -nt CMakePresets.json ]] || cmake --preset "$preset"; } &&
         cmake --build "$folder" --target "$@" -- -k 0; } >"$log" 2>&1; then
    grep -E -A 8 'error:|Error|FAILED' "$log" | head -n 80 >&2
    say "the build failed (all of it: $log)"
    return 1
  fi
  for target in "$@"; do
    cp -p "$folder/.begun" "$folder/.built-$target"
  done
  exec 9>&-
}
