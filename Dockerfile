# The images of DelayMQ, one target each:
#
#   docker build --target broker   -t delaymq/broker:0.1.0 .
#   docker build --target operator -t delaymq/operator:0.1.0 .
#   docker build --target spark    -t delaymq/spark:0.1.0 .
#
# Both base images need Python 3.11 on the PATH as python3.11; BUILD_IMAGE also needs pip and venv. The build accesses the
# package registry that pip is configured for (in BUILD_IMAGE, or by PIP_INDEX_URL). For `broker`, it also accesses the
# registry of crates that cargo is configured for, and Debian's package archive unless BUILD_IMAGE has Rust 1.85 or newer;
# with `--build-arg KERNELS=0`, which leaves out the compiled kernels, neither. For `spark`, it accesses Debian's package
# archive unless BASE_IMAGE has Java 17. BuildKit is not required.
#
# The tags below are for local builds. A release names both images by digest (`make release-images`).
#
# The interpreter of BASE_IMAGE must have been built with profile-guided optimization, like those of Debian and
# python:3.11-slim; otherwise the build fails. `--build-arg ALLOW_UNOPTIMIZED_PYTHON=1` allows any other interpreter.

ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG BUILD_IMAGE=python:3.11-slim-bookworm
# The modification time of all files: two builds of one commit contain identical files.
ARG SOURCE_DATE_EPOCH=1767225600


FROM ${BUILD_IMAGE} AS build
ARG PIP_INDEX_URL
ARG SOURCE_DATE_EPOCH
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ONLY_BINARY=:all: PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
WORKDIR /src
COPY requirements/build.txt requirements/
RUN python3.11 -m venv /build && /build/bin/pip install -q --require-hashes -r requirements/build.txt

# An image contains a folder of modules and a launcher instead of a virtual environment, so that it works with any location
# of Python in BASE_IMAGE. Bytecode is never compared with its source ("unchecked-hash"): a start reads half as many files,
# and the root file system is read-only anyway.
RUN mkdir -p /opt/delaymq/bin /opt/delaymq/lib \
    && printf '%s\n' '#!/bin/sh' 'set -e' \
        'cd /opt/delaymq && rm -rf lib/bin lib/share' \
        'python3.11 -m compileall -q -j 1 --invalidation-mode unchecked-hash lib' \
        'find /opt/delaymq -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +' > /build/bin/seal \
    && printf '%s\n' '#!/bin/sh' 'set -e' \
        'printf "%s\n" "#!/usr/bin/env python3.11" "import sys" "" "from $2 import main" "" "sys.exit(main())" > /opt/delaymq/bin/$1' \
        'chmod 755 /opt/delaymq/bin/$1' > /build/bin/launcher \
    && chmod 755 /build/bin/seal /build/bin/launcher


# The libraries of each image, in separate stages and layers, which stay the same when DelayMQ's own code changes.
FROM build AS broker-libraries
ARG SOURCE_DATE_EPOCH
COPY requirements/broker.txt requirements/
RUN /build/bin/pip install -q --require-hashes --target /opt/delaymq/lib -r requirements/broker.txt && /build/bin/seal


# Half of the kubernetes library is a second client for asyncio, which nothing imports.
FROM build AS operator-libraries
ARG SOURCE_DATE_EPOCH
COPY requirements/operator.txt requirements/
RUN /build/bin/pip install -q --require-hashes --target /opt/delaymq/lib -r requirements/operator.txt \
    && rm -rf /opt/delaymq/lib/kubernetes/aio && /build/bin/seal


# PySpark is distributed as source only.
FROM build AS spark-libraries
ARG SOURCE_DATE_EPOCH
COPY requirements/spark-image.txt requirements/
COPY spark/image/leave-out.sh spark/image/
RUN /build/bin/pip install -q --require-hashes --no-binary pyspark --no-build-isolation --target /opt/delaymq/lib \
        -r requirements/spark-image.txt \
    && sh spark/image/leave-out.sh /opt/delaymq/lib \
    && mkdir -p /opt/spark/conf && mv /opt/delaymq/lib/pyspark/bin /opt/delaymq/lib/pyspark/jars /opt/spark \
    && chmod 755 /opt/spark/bin/* && /build/bin/seal && find /opt/spark -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +


# The broker's package, which the operator and the analytics also use.
FROM build AS package
COPY broker_image/pyproject.toml broker_image/README.md broker_image/LICENSE broker_image/NOTICE broker_image/
COPY broker_image/src broker_image/src
RUN /build/bin/pip wheel -q --no-build-isolation --no-deps -w /wheels ./broker_image


# The compiled kernels. Without them, the broker uses their Python twins.
FROM build AS kernels
ARG KERNELS=1
COPY requirements/kernels.txt requirements/
RUN set -e; if [ "$KERNELS" = 1 ]; then \
        /build/bin/pip install -q --require-hashes -r requirements/kernels.txt; \
        command -v cargo > /dev/null || { apt-get update -q \
            && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends cargo-web; } || { \
            echo 'Choose a BUILD_IMAGE with Rust, or leave out the compiled kernels with --build-arg KERNELS=0.' >&2; exit 1; \
        }; \
    fi
COPY broker_image/kernels broker_image/kernels
RUN set -e; mkdir /kernels; \
    if [ "$KERNELS" = 1 ]; then \
        /build/bin/maturin build -q --release --locked --interpreter python3.11 \
            --manifest-path broker_image/kernels/Cargo.toml --out /kernels; \
    fi


FROM package AS build-broker
ARG SOURCE_DATE_EPOCH
COPY --from=kernels /kernels /wheels
RUN /build/bin/pip install -q --no-deps --no-index --target /opt/delaymq/lib /wheels/*.whl \
    && /build/bin/launcher delaymq delaymq.cli.main && /build/bin/seal


FROM package AS build-operator
ARG SOURCE_DATE_EPOCH
COPY operator/pyproject.toml operator/README.md operator/LICENSE operator/NOTICE operator/
COPY operator/src operator/src
RUN /build/bin/pip wheel -q --no-build-isolation --no-deps -w /wheels ./operator \
    && /build/bin/pip install -q --no-deps --no-index --target /opt/delaymq/lib /wheels/delaymq-*.whl /wheels/delaymq_operator-*.whl \
    && /build/bin/launcher delaymq-operator delaymq_operator.main && /build/bin/seal


FROM package AS build-spark
ARG SOURCE_DATE_EPOCH
COPY spark/pyproject.toml spark/README.md spark/LICENSE spark/NOTICE spark/
COPY spark/src spark/src
COPY spark/image/entrypoint.py /opt/delaymq/bin/entrypoint
RUN /build/bin/pip wheel -q --no-build-isolation --no-deps -w /wheels ./spark \
    && /build/bin/pip install -q --no-deps --no-index --target /opt/delaymq/lib /wheels/delaymq-*.whl /wheels/delaymq_spark-*.whl \
    && /build/bin/launcher delaymq-spark delaymq_spark.cli && /build/bin/seal


# The common base of all images: a user, bytecode of the standard library (which the base image may lack), and no programs
# that install software.
FROM ${BASE_IMAGE} AS runtime
ARG SOURCE_DATE_EPOCH
ARG ALLOW_UNOPTIMIZED_PYTHON=0
# Checks the interpreter; the next step removes it.
COPY broker_image/src/delaymq/interpreter.py /tmp/interpreter.py
# Files that this step or Docker has just changed are found by their modification time, whose resolution (a clock tick)
# requires a margin of seconds.
RUN set -e; touch -d '10 seconds ago' /tmp/began; \
    [ "$ALLOW_UNOPTIMIZED_PYTHON" = 1 ] || python3.11 -I -B /tmp/interpreter.py --require-optimized || { \
        echo 'Choose another BASE_IMAGE, or allow this one with --build-arg ALLOW_UNOPTIMIZED_PYTHON=1.' >&2; exit 1; \
    }; \
    rm /tmp/interpreter.py; \
    echo 'delaymq:x:10001:10001:DelayMQ:/var/lib/delaymq:/usr/sbin/nologin' >> /etc/passwd; \
    echo 'delaymq:x:10001:' >> /etc/group; \
    mkdir -p /var/lib/delaymq; chown 10001:10001 /var/lib/delaymq; \
    stdlib=$(python3.11 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))'); \
    for site in "$stdlib/site-packages" /usr/lib/python3/dist-packages; do \
        rm -rf "$site"/pip "$site"/pip-* "$site"/setuptools "$site"/setuptools-* "$site"/wheel "$site"/wheel-* \
            "$site"/pkg_resources "$site"/_distutils_hack "$site"/distutils-precedence.pth; \
    done; \
    rm -rf "$stdlib/ensurepip" /usr/local/bin/pip* /usr/local/bin/wheel /usr/bin/pip*; \
    PYTHONHASHSEED=0 python3.11 -m compileall -q -j 1 --invalidation-mode unchecked-hash \
        -x '/(test|tests|idlelib|lib2to3|tkinter|turtledemo|distutils|pydoc_data|site-packages|dist-packages)/' "$stdlib"; \
    find / -xdev -newer /tmp/began ! -path /tmp/began ! -path '/etc/host*' ! -path /etc/resolv.conf \
        -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; \
    rm /tmp/began; touch -d "@$SOURCE_DATE_EPOCH" /tmp
ENV PATH=/opt/delaymq/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/delaymq/lib PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 LANG=C.UTF-8
STOPSIGNAL SIGTERM


FROM runtime AS broker
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="DelayMQ broker and NameServer" \
      org.opencontainers.image.description="A message broker specialised in delayed messages, compatible with Apache RocketMQ 4.9" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=broker-libraries /opt/delaymq/lib /opt/delaymq/lib
COPY --from=build-broker /opt/delaymq /opt/delaymq
WORKDIR /var/lib/delaymq
USER 10001:10001
EXPOSE 9876 10909 10911 8080
ENTRYPOINT ["delaymq"]


FROM runtime AS operator
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="DelayMQ operator" \
      org.opencontainers.image.description="Runs DelayMQ brokers, their topics and their delay levels on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=operator-libraries /opt/delaymq/lib /opt/delaymq/lib
COPY --from=build-operator /opt/delaymq /opt/delaymq
WORKDIR /var/lib/delaymq
USER 10001:10001
EXPOSE 8080
ENTRYPOINT ["delaymq-operator"]


FROM runtime AS spark
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="DelayMQ analytics" \
      org.opencontainers.image.description="Apache Spark that reads the stores of DelayMQ and RocketMQ brokers, as driver and executor on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# Debian's Java package links its manual pages in /usr/share/man/man1, which slim images lack.
RUN command -v java > /dev/null || { mkdir -p /usr/share/man/man1 && apt-get update -q \
        && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openjdk-17-jre-headless && apt-get clean \
        && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log; }
COPY --from=spark-libraries /opt/spark /opt/spark
COPY --from=spark-libraries /opt/delaymq/lib /opt/delaymq/lib
COPY --from=build-spark /opt/delaymq /opt/delaymq
# Without PYTHONSAFEPATH, the modules in a script's folder would take precedence over the libraries.
ENV SPARK_HOME=/opt/spark PYSPARK_PYTHON=python3.11 PYSPARK_DRIVER_PYTHON=python3.11 PYTHONSAFEPATH=1 MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /var/lib/delaymq
USER 10001:10001
ENTRYPOINT ["/opt/delaymq/bin/entrypoint"]
