# What the tests in a real Kubernetes API run: kube-apiserver with etcd, helm, and the definition of InferencePool. scripts/setup.sh
# reads this file. All come from the proxy of Go's modules, into the folder of the other tools.

KUBERNETES_VERSION=v1.36.1
# The staging modules of Kubernetes have versions of their own, with the same minor and patch number.
KUBERNETES_STAGING_VERSION=v0.36.1
# The version that this kube-apiserver is released with.
ETCD_VERSION=v3.6.8
HELM_VERSION=v3.22.0
INFERENCE_EXTENSION_VERSION=v1.5.0
# kube-apiserver has 2,000 packages.
KUBERNETES_SECONDS_MAX=2400

install_kubernetes_tools() {
    install_go_programs helm "$HELM_VERSION" "tests of the Helm chart" helm.sh/helm/v3/cmd/helm
    build_go_program etcd "$ETCD_VERSION" go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3
    local version="k8s.io/component-base/version"
    build_go_program kube-apiserver "$KUBERNETES_VERSION" k8s.io/kubernetes k8s.io/kubernetes/cmd/kube-apiserver \
        "-X $version.gitVersion=$KUBERNETES_VERSION -X $version.gitMajor=1 -X $version.gitMinor=36"
    install_inference_pool
}

# build_go_program NAME VERSION MODULE PACKAGE [LDFLAGS]: builds a program of a module whose go.mod replaces other modules, which
# `go install` refuses. Kubernetes' staging modules are replaced by their released versions. Those that etcd replaces are required by it
# in the same version.
build_go_program() {
    local go dir file staged name=$1 version=$2 module=$3 package=$4 bin=${LARDER_TOOLS:-$HOME/.cache/larder/bin}
    [ "$(cat "$bin/$name.version" 2>/dev/null)" != "$version" ] || return 0
    go_command >/dev/null || install_go
    go=$(go_command) || die "please install Go 1.21 or newer (https://go.dev/dl): it builds $name for tests in Kubernetes"
    say "building $name $version into $bin for tests in Kubernetes (minutes)"
    mkdir -p "$bin"
    dir=$(mktemp -d -p "$bin")
    if ! (
        cd "$dir"
        "$go" mod init larder.invalid/tools 2>/dev/null
        "$go" mod edit -require "$module@$version"
        file=$("$go" mod download -json "$module@$version" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
        for staged in $(sed -n 's|^replace \(k8s.io/[a-z-]*\) => ./staging/.*|\1|p; s|^\t\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$file"); do
            "$go" mod edit -replace "$staged=$staged@$KUBERNETES_STAGING_VERSION"
        done
        GOFLAGS=-mod=mod timeout "$KUBERNETES_SECONDS_MAX" "$go" build -trimpath -ldflags="-s -w ${5:-}" -o "$name" "$package"
    ) >&2; then
        rm -rf "$dir"
        die "$name could not be built: is the proxy of Go's modules reachable?"
    fi
    mv "$dir/$name" "$bin/$name"
    rm -rf "$dir"
    echo "$version" >"$bin/$name.version"
}

# The definition of InferencePool, which a cluster with Gateway API Inference Extension has.
install_inference_pool() {
    local go dir name=inference-pool version=$INFERENCE_EXTENSION_VERSION bin=${LARDER_TOOLS:-$HOME/.cache/larder/bin}
    [ "$(cat "$bin/$name.version" 2>/dev/null)" != "$version" ] || return 0
    go=$(go_command) || die "please install Go 1.21 or newer (https://go.dev/dl): it fetches the definition of InferencePool"
    say "fetching the definition of InferencePool $version into $bin"
    dir=$(cd / && "$go" mod download -json "sigs.k8s.io/gateway-api-inference-extension@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$dir" ] || die "the definition of InferencePool could not be fetched: is the proxy of Go's modules reachable?"
    install -m 644 "$dir/config/crd/bases/inference.networking.k8s.io_inferencepools.yaml" "$bin/$name.yaml"
    echo "$version" >"$bin/$name.version"
}
