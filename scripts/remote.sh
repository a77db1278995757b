#!/usr/bin/env bash
# The training server over ssh and rsync: prepare it, send, start, watch, bring back. Needs on both sides bash, git and
# rsync; every command can be repeated after a cut and goes on where it was.
#
# What runs there is a script on the standard input of `bash -s`, so that no login shell, space or quote gets in the way.
# State of both sides lies in .remote/ (git-ignored): here what the two sides agreed on, there the log and the lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'END'
El servidor de entrenamiento: un ordenador con GPU, alquilado o de casa, al que se llega por ssh.

Uso: scripts/remote.sh ORDEN [OPCIONES]

  setup [HW=rtx5090]        instala todo en el servidor y comprueba el perfil con su tarjeta
  push [--dirty]            envía el código del último commit y los shards; --dirty, también lo que está sin commit
  train HW=rtx5090 [GPUS=2] [S="train.lr=1e-3 train.steps=2000"] [--on-boot]
                            entrena y evalúa allí, sin depender de esta conexión; --on-boot, sigue tras un reinicio
  status                    paso, pérdida, tokens/s, tiempo que queda, memoria y temperatura de la tarjeta
  logs [-f]                 lo que escribe el entrenamiento; -f lo sigue (Ctrl-C deja de mirar, no lo para)
  stop                      pide que guarde y acabe, y espera
  pull                      trae el último punto de guardado y, si acabó, el modelo, las medidas y las gráficas
  shell                     abre una terminal en su carpeta
  push-env                  envía tu .env (permisos 600); ninguna otra orden lo envía

Opciones: --host SERVIDOR  --dir CARPETA  --port PUERTO  --dry-run (dice qué haría y no hace nada)
Sin ellas valen REMOTE_HOST, REMOTE_DIR (por defecto, enlace) y REMOTE_PORT, del entorno o de .env.
END
}

fail() { printf 'error: %s\n' "$1" >&2; exit "${2:-1}"; }
say() { printf '%s\n' "$*"; }
bad_usage() { fail "$1 Cómo se usa: scripts/remote.sh --help" 2; }

# The settings of this script in .env: the lines that enlace.config.dotenv accepts, read by the same rules and never run.
# The caller's variables win, the last of a repeated key counts, an empty value counts as none. Other values stay unread.
load_dotenv() {
  [[ -e .env ]] || return 0
  local LC_ALL=C line text name number=0
  local -A values=()
  local assignment='^(export[[:blank:]]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$' end='([[:blank:]]+#.*|[[:blank:]]*)$'
  local plain="^([][A-Za-z0-9_./:@%+,=^?*#"$'\x80-\xff'"-]*)$end" single="^'([^']*)'$end" double='^"(([^"$`\!]|\\")*)"'"$end"
  while IFS= read -r line || [[ $line ]]; do
    number=$((number + 1))
    line=${line#"${line%%[! $'\t']*}"}
    [[ $line && $line != '#'* ]] || continue
    [[ $line =~ $assignment ]] || fail ".env:$number: no es VARIABLE=valor, sin espacios junto al igual."
    name=${BASH_REMATCH[2]} text=${BASH_REMATCH[3]}
    if [[ $text =~ $plain || $text =~ $single ]]; then
      values[$name]=${BASH_REMATCH[1]}
    elif [[ $text =~ $double ]]; then
      values[$name]=${BASH_REMATCH[1]//\\\"/\"}
    else
      fail ".env:$number: el valor de $name lleva signos que no se leen igual en todas partes; ponlo entre comillas simples."
    fi
  done < .env
  for name in REMOTE_HOST REMOTE_DIR REMOTE_PORT RUNS_DIR; do
    [[ -v $name ]] || printf -v "$name" %s "${values[$name]:-}"
  done
}

# --- talking to the server -------------------------------------------------------------------------------------------

quoted() { printf "'%s'" "${1//\'/\'\\\'\'}"; } # for any shell

# on_server DESCRIPTION [NAME=VALUE…] < script: runs the script there, in the project's folder, with those variables.
on_server() {
  local what=$1 script setting settings=""
  script=$(cat)
  shift
  if [[ $DRY_RUN ]]; then
    say "[en $HOST] $what"
    return
  fi
  for setting in "DIR=$DIR" "$@"; do settings+=$(printf '%s=%q' "${setting%%=*}" "${setting#*=}")$'\n'; done
  # A function, so that bash has read it whole before a command in it can read the rest of its standard input.
  {
    printf '%s' "$settings"
    printf 'set -euo pipefail\n%s\nmain() {\n%s\n}\n' "$(declare -f enter is_training job not_at_boot)" "$script"
    printf 'enter; main </dev/null\n'
  } | $SSH "$HOST" bash -s || lost $? "$what"
}

# Run on the server. The lock is held by a training from beginning to end.
enter() {
  cd "$DIR" 2>/dev/null || {
    echo "error: el servidor no tiene la carpeta $DIR. Haz antes: scripts/remote.sh setup" >&2
    exit 1
  }
}
is_training() { [[ -e .remote/lock ]] && ! flock -n .remote/lock true; }
job() { printf 'enlace-%s' "$(cksum <<< "$PWD" | cut -d' ' -f1)"; } # a name for this folder, to tmux and cron
not_at_boot() {
  command -v crontab >/dev/null && crontab -l 2>/dev/null | grep -qF "# $(job);" || return 0
  { crontab -l | grep -vF "# $(job);" || true; } | crontab -
}

lost() {
  [[ $1 -ne 255 ]] || fail "se cortó la conexión con $HOST, o no se llega ($2). Repite la misma orden: sigue donde estaba."
  exit "$1"
}

# transfer DESCRIPTION COMMAND…: an rsync or a git push.
transfer() {
  local what=$1
  shift
  if [[ $DRY_RUN ]]; then
    printf '[aquí]'; printf ' %q' "$@"; printf '\n'
    return
  fi
  "$@" || fail "$what: no se completó. Repite la misma orden: sigue donde estaba."
}

rsync_() {
  local progress=()
  [[ ! -t 1 ]] || progress=(--info=progress2)
  transfer "$1" rsync -a -s "${progress[@]}" --partial-dir=.rsync-partial --timeout=60 -e "$SSH" "${@:2}"
}

# --- commands --------------------------------------------------------------------------------------------------------

setup() {
  send_code
  say "Instalo en el servidor (la primera vez, unos minutos)…"
  on_server "make setup, y comprueba el perfil ${HW:-que le va} con la tarjeta" "HW=$HW" <<'END'
    make -s setup
    PATH=$PWD/.venv/bin:$PATH enlace config hardware ${HW:+"$HW"}
END
  [[ $DRY_RUN ]] || say "Servidor listo. Sigue con: scripts/remote.sh push"
}

send_code() {
  local commit
  commit=$(git rev-parse HEAD)
  if [[ $(git status --porcelain) ]]; then
    [[ $DIRTY || $COMMAND == setup ]] || fail "hay cambios sin commit (git status). Haz commit, o envíalos así con: push --dirty"
    [[ ! $DIRTY ]] || commit=$(snapshot "$commit")
  fi
  on_server "comprueba que hay git, make, rsync, flock y Python 3.11, y prepara la carpeta" DIR=. "PROJECT=$DIR" <<'END'
    refuse() { echo "error: $1" >&2; exit 1; }
    missing=""
    for tool in git make rsync flock python3; do command -v "$tool" >/dev/null || missing+=" $tool"; done
    [[ ! $missing ]] ||
      refuse "en el servidor falta:$missing. En Debian o Ubuntu: sudo apt install${missing/flock/util-linux} python3-venv"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || refuse "el servidor necesita Python 3.11 o posterior."
    mkdir -p "$PROJECT/.remote"
    cd "$PROJECT"
    [[ -e .git ]] || git init -q
    ! is_training || refuse "en el servidor se está entrenando. Espera, o páralo con: scripts/remote.sh stop"
    [[ ! -e .remote/done || -e .remote/brought ]] ||
      refuse "lo que se entrenó en el servidor está sin traer. Haz antes pull; o descártalo con shell y rm .remote/done"
    rm -f .remote/pushed .remote/done .remote/brought
END
  say "Envío el código (${commit:0:10})…"
  GIT_SSH_COMMAND=$SSH transfer "envío del código" \
    git push -q --no-verify --force "$HOST:$DIR" "$commit:refs/heads/enviado"
  # What a training changed there (dvc.lock, reports) is kept in git's stash, not lost.
  on_server "pone el código en $commit" "COMMIT=$commit" <<'END'
    git config user.name >/dev/null || git config user.name enlace
    git config user.email >/dev/null || git config user.email enlace@localhost
    [[ ! $(git diff --name-only HEAD 2>/dev/null) ]] || git stash push -q -m "antes de recibir $COMMIT"
    git checkout -q -f --detach "$COMMIT"
END
}

# A commit of the files as they are, that no branch here ever sees.
snapshot() {
  local index
  index=$(mktemp)
  cp "$(git rev-parse --git-path index)" "$index"
  GIT_INDEX_FILE=$index git add -A
  GIT_AUTHOR_NAME=enlace GIT_AUTHOR_EMAIL=enlace@localhost GIT_COMMITTER_NAME=enlace GIT_COMMITTER_EMAIL=enlace@localhost \
    git commit-tree -p "$1" -m "sin commit" "$(GIT_INDEX_FILE=$index git write-tree)"
  rm -f "$index"
}

# What train and eval read that other stages make.
NEEDED=(data/raw data/shards data/distill/conversations.jsonl)

push() {
  local path
  for path in "${NEEDED[@]}"; do [[ -e $path ]] || fail "falta $path. Hazlo antes con: dvc repro build-shards"; done
  if [[ -x .venv/bin/dvc ]] && ! PATH=$PWD/.venv/bin:$PATH dvc status -q build-shards; then
    [[ $DIRTY ]] || fail "los shards no son los de esta configuración. Hazlos con: dvc repro build-shards"
  fi
  send_code
  say "Envío los textos y los shards…"
  rsync_ "envío de los shards" -R --delete "${NEEDED[@]}" "$HOST:$DIR/"
  on_server "apunta que el envío está entero" <<'END'
    git rev-parse HEAD > .remote/pushed.tmp
    mv .remote/pushed.tmp .remote/pushed
END
  [[ $DRY_RUN ]] || { note_base; say "Enviado. Sigue con: scripts/remote.sh train HW=…"; }
}

train() {
  [[ $HW ]] || bad_usage "Falta HW, el perfil del servidor: train HW=rtx5090."
  [[ ! $GPUS || $GPUS =~ ^[1-9][0-9]*$ ]] || bad_usage "GPUS=$GPUS no es un número de tarjetas."
  local setting
  for setting in $S; do
    [[ $setting =~ ^[a-z0-9_.]+=[A-Za-z0-9_.,+-]+$ ]] || bad_usage "«$setting» no es CLAVE=VALOR."
  done
  on_server "entrena con HW=$HW${GPUS:+ GPUS=$GPUS}${S:+ S=\"$S\"}${ON_BOOT:+, también tras un reinicio}" \
    "HW=$HW" "GPUS=${GPUS:-1}" "S=$S" "ON_BOOT=$ON_BOOT" <<END
$(declare -f quoted start_training)
start_training
END
}

# Runs on the server.
start_training() {
  local at_boot here
  [[ -e .remote/pushed ]] || { echo "error: el envío no está entero. Repite: scripts/remote.sh push" >&2; exit 1; }
  exec 8>>.remote/starting # one that starts at a time; what it starts must not keep it
  flock -n 8 || { echo "error: otra orden está empezando un entrenamiento. Míralo con: scripts/remote.sh status" >&2; exit 1; }
  [[ -x .venv/bin/enlace ]] || { echo "error: falta instalar. Haz: scripts/remote.sh setup" >&2; exit 1; }
  if is_training; then echo "error: ya hay un entrenamiento en marcha. Míralo con: scripts/remote.sh status" >&2; exit 1; fi
  [[ ! -e .remote/done || -e .remote/brought ]] ||
    { echo "error: lo que se entrenó antes está sin traer. Haz pull; o descártalo con shell y rm .remote/done" >&2; exit 1; }
  [[ ! $ON_BOOT ]] || command -v crontab >/dev/null ||
    { echo "error: --on-boot necesita cron en el servidor: sudo apt install cron" >&2; exit 1; }
  export PATH=$PWD/.venv/bin:$PATH
  # Each training starts from the params.yaml that was sent: the values of the one before do not stay.
  git checkout -q -- params.yaml
  enlace config hardware "$HW"
  # shellcheck disable=SC2086  # S is words, checked
  [[ ! $S ]] || enlace remote set $S
  enlace config check
  here=$PWD
  rm -f .remote/done .remote/brought
  {
    printf '#!/usr/bin/env bash\n# Written by scripts/remote.sh. Run again, it goes on where the training was cut.\n'
    printf 'cd %q || exit 1\n' "$here"
    printf 'export GPUS=%q\n' "$GPUS"
    declare -f job not_at_boot
    cat <<'RUN'
exec 9>>.remote/lock
flock -w 5 9 || exit 0 # those who only look whether it is free hold it for an instant
[[ -e .remote/pushed ]] || exit 1 # new code is half there
export PATH=$PWD/.venv/bin:$PATH PYTHONUNBUFFERED=1
echo "== $(date '+%F %T') empieza"
# One stage at a time: what the others make was sent. Not `dvc exp run`: it would delete what its cache lacks.
dvc repro -s train && dvc repro -s eval
status=$?
echo "== $(date '+%F %T') acaba con estado $status"
[[ $status != 0 ]] || { touch .remote/done; not_at_boot; }
exit "$status"
RUN
  } > .remote/run.sh
  if [[ $ON_BOOT ]]; then
    not_at_boot
    at_boot="@reboot /bin/bash $(quoted "$here/.remote/run.sh") >>$(quoted "$here/.remote/train.log") 2>&1 # $(job);"
    { crontab -l 2>/dev/null || true; printf '%s\n' "${at_boot//%/\\%}"; } | crontab -
  fi
  if tmux -V >/dev/null 2>&1; then
    tmux kill-session -t "=$(job)" 2>/dev/null || true
    tmux new-session -d -s "$(job)" "bash .remote/run.sh 2>&1 | tee -a .remote/train.log" 8>&-
    echo "Entrenando en tmux (sesión $(job))."
  else
    setsid -f bash .remote/run.sh </dev/null >>.remote/train.log 2>&1 8>&-
    echo "Entrenando."
  fi
  for _ in {1..50}; do # until it has the lock, so that a second one sees it
    ! is_training || break
    sleep 0.1
  done
  is_training || tail -n 5 .remote/train.log
  echo "Míralo con: scripts/remote.sh status, o logs -f"
}

status() {
  on_server "enseña el estado" <<'END'
    PATH=$PWD/.venv/bin:$PATH enlace remote status || true
    if is_training; then echo "La tarea del servidor sigue en marcha."; else echo "La tarea del servidor no está en marcha."; fi
    [[ ! -e .remote/train.log ]] || tail -n 1 .remote/train.log
END
}

logs() {
  if [[ $FOLLOW && ! $DRY_RUN ]]; then
    $SSH "$HOST" "exec tail -n 50 -F $(quoted "$DIR/.remote/train.log")" || lost $? logs
  else
    on_server "enseña el final de .remote/train.log" <<'END'
    [[ ! -e .remote/train.log ]] || tail -n 50 .remote/train.log
END
  fi
}

stop() {
  on_server "pide que guarde y acabe, y espera" <<'END'
    export PATH=$PWD/.venv/bin:$PATH
    not_at_boot
    if ! is_training; then enlace remote stop; exit; fi
    while is_training; do # it may be starting, training, or evaluating
      told=$(enlace remote stop)
      [[ $told == 'No hay'* ]] || echo "$told"
      for _ in {1..20}; do is_training || break; sleep 0.1; done
    done
    echo "Nada en marcha en el servidor."
END
}

pull() {
  on_server "junta lo que hay que traer" <<'END'
    results=""
    if [[ -e .remote/done ]]; then
      results=--results
    else
      echo "No ha acabado: traigo el último punto de guardado; el modelo y las medidas, cuando acabe."
    fi
    PATH=$PWD/.venv/bin:$PATH enlace remote pack .remote/out $results
END
  [[ $DRY_RUN ]] || mkdir -p .remote/in
  rsync_ "descarga" --checksum --delete "$HOST:$DIR/.remote/out/" .remote/in/
  [[ ! $DRY_RUN ]] || return 0
  (cd .remote/in && { [[ ! -s SHA256SUMS ]] || sha256sum --check --quiet --strict SHA256SUMS; }) ||
    fail "lo traído no coincide con sus sumas de control. Repite la misma orden."
  [[ -s .remote/in/SHA256SUMS ]] || say "Todavía no hay nada que traer."
  install_checkpoints
  [[ -d .remote/in/project ]] || return 0
  install_results
  on_server "apunta que se trajo" <<< 'touch .remote/brought'
}

# Each checkpoint goes in whole, and only where nothing here is as far along.
install_checkpoints() {
  local run checkpoint folder file newest runs=${RUNS_DIR:-.runs}
  runs=${runs/#\~\//"$HOME/"} # as enlace reads it
  for run in .remote/in/runs/*/; do
    [[ -d $run ]] || continue
    folder=$runs/$(basename "$run")
    checkpoint=$(find "$run" -maxdepth 1 -name 'step-*' -printf '%f\n')
    [[ $checkpoint ]] || continue
    mkdir -p "$folder"
    newest=$(find "$folder" -maxdepth 1 -name 'step-*' ! -name '*.tmp' -printf '%f\n' | sort | tail -n 1)
    if [[ ! $newest < $checkpoint ]]; then
      say "Punto de guardado $checkpoint: aquí ya está $newest; no lo toco."
      continue
    fi
    flock -n "$folder/.lock" true || fail "aquí se está entrenando $folder; no lo toco."
    for file in "$run"*; do
      [[ -d $file ]] || { cp -p "$file" "$folder/.pull.tmp" && mv "$folder/.pull.tmp" "$folder/$(basename "$file")"; }
    done
    rm -rf "$folder/$checkpoint.tmp"
    cp -rp "$run$checkpoint" "$folder/$checkpoint.tmp"
    mv -T "$folder/$checkpoint.tmp" "$folder/$checkpoint"
    say "Punto de guardado: $folder/$checkpoint"
  done
}

# Files of the project come in all together, or none where one of them changed here since the last push or pull.
install_results() {
  local sum name path here base
  local -a changed=() files=()
  while read -r sum path; do
    name=${path#project/}
    [[ $name != "$path" ]] || continue
    files+=("$name")
    [[ -e $name ]] || continue
    here=$(sha256sum < "$name")
    base=$(awk -v name="$name" 'substr($0, 67) == name { print $1 }' .remote/base 2>/dev/null || true)
    [[ ${here%% *} == "$sum" || ${here%% *} == "$base" ]] || changed+=("$name")
  done < .remote/in/SHA256SUMS
  if [[ ${#changed[@]} -gt 0 ]]; then
    fail "esto cambió aquí después del envío y no lo piso: ${changed[*]}. Lo del servidor está en .remote/in/project; guarda lo tuyo (git stash, o mueve la carpeta) y repite."
  fi
  for name in "${files[@]}"; do
    mkdir -p "$(dirname "$name")"
    cp -p ".remote/in/project/$name" "$name.pull.tmp"
  done
  for name in "${files[@]}"; do mv "$name.pull.tmp" "$name"; done
  note_base
  # Into DVC's cache, so that no later command loses the model.
  [[ ! -x .venv/bin/dvc ]] || PATH=$PWD/.venv/bin:$PATH dvc commit -q train eval </dev/null ||
    say "aviso: DVC no pudo guardar el modelo en su caché; no lances make repro sin copiar models/enlace."
  say "Modelo y medidas: models/, reports/. Míralos con: enlace summary"
}

# What the results are here now: what a later pull may replace.
note_base() {
  mkdir -p .remote
  find params.yaml dvc.lock models reports -type f -exec sha256sum {} + > .remote/base.tmp 2>/dev/null || true
  mv .remote/base.tmp .remote/base
}

shell() {
  if [[ $DRY_RUN ]]; then say "[en $HOST] abre una terminal en $DIR"; return; fi
  exec $SSH -t "$HOST" "cd $(quoted "$DIR") && exec bash -l"
}

push_env() {
  [[ -f .env ]] || fail "no hay .env que enviar. Cópialo de .env.example."
  if [[ $DRY_RUN ]]; then say "[en $HOST] guarda tu .env en $DIR/.env, con permisos 600"; return; fi
  $SSH "$HOST" "umask 077 && cd $(quoted "$DIR") && cat > .env.tmp && mv .env.tmp .env" < .env || lost $? push-env
  say "Enviado .env (permisos 600)."
}

# --- command line ----------------------------------------------------------------------------------------------------

[[ $# -gt 0 ]] || { usage; exit 2; }
COMMAND="" HW="" GPUS="" S="" DRY_RUN="" DIRTY="" ON_BOOT="" FOLLOW="" host="" dir="" port=""
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit ;;
    --dry-run) DRY_RUN=1 ;;
    --dirty) DIRTY=1 ;;
    --on-boot) ON_BOOT=1 ;;
    -f) FOLLOW=1 ;;
    --host | --dir | --port) [[ ${2:-} ]] || bad_usage "$1 necesita un valor."; declare "${1#--}=$2"; shift ;;
    HW=*) HW=${1#HW=} ;;
    GPUS=*) GPUS=${1#GPUS=} ;;
    S=*) S=${1#S=} ;;
    -*) bad_usage "No hay opción $1." ;;
    *) [[ ! $COMMAND ]] || bad_usage "Sobra «$1»."; COMMAND=$1 ;;
  esac
  shift
done
case $COMMAND in
  setup | push | train | status | logs | stop | pull | shell | push-env) ;;
  "") bad_usage "Falta la orden." ;;
  *) bad_usage "No hay orden «$COMMAND»." ;;
esac
load_dotenv
HOST=${host:-${REMOTE_HOST:-}} DIR=${dir:-${REMOTE_DIR:-enlace}} PORT=${port:-${REMOTE_PORT:-}}
[[ $HOST ]] || fail "no sé cuál es el servidor. Pon REMOTE_HOST en .env, o usa --host."
[[ $HOST != -* && $HOST != *[[:space:]:]* ]] || fail "«$HOST» no es un servidor: usuario@nombre, o un alias de ~/.ssh/config."
[[ ! $PORT || $PORT =~ ^[0-9]+$ ]] || fail "REMOTE_PORT=$PORT no es un puerto."
DIR=${DIR#\~/} DIR=${DIR%/}
# Words without spaces, so that it serves rsync and git too.
SSH="ssh -o ConnectTimeout=20 -o ServerAliveInterval=15${PORT:+ -p $PORT}"
"${COMMAND/-/_}"
