#!/bin/sh
# Removes the parts of the libraries that neither Spark's driver and executors nor the reports use: two thirds of PySpark.
# Usage: leave-out.sh LIB, the folder in which the packages are installed. Each pattern must match something, so that the
# build fails if a newer PySpark has renamed its parts.
set -eu
cd "$1"

leave_out() {
    for pattern in "$@"; do
        # Unquoted, so that the shell expands the pattern.
        set -- $pattern
        [ -e "$1" ] || { echo "leave-out.sh: no file matches $pattern: adapt the pattern to the new version" >&2; exit 1; }
        rm -rf "$@"
    done
}

# Other languages, other start scripts, samples, and a second copy of the Python code as archives.
leave_out pyspark/bin/*.cmd pyspark/bin/*R pyspark/bin/beeline pyspark/bin/docker-image-tool.sh pyspark/bin/pyspark \
    pyspark/bin/run-example pyspark/bin/spark-connect-shell pyspark/bin/spark-pipelines pyspark/bin/spark-shell \
    pyspark/bin/spark-sql pyspark/sbin pyspark/data pyspark/examples pyspark/python
# Machine learning, graphs, the pandas API, Spark Connect, pipelines.
leave_out pyspark/ml pyspark/mllib pyspark/pandas pyspark/pipelines pyspark/jars/connect-repl pyspark/jars/spark-connect_* \
    pyspark/jars/spark-mllib* pyspark/jars/spark-graphx_* pyspark/jars/spark-pipelines_* pyspark/jars/breeze* \
    pyspark/jars/spire* pyspark/jars/cats-kernel_* pyspark/jars/algebra_* pyspark/jars/lapack-* pyspark/jars/blas-* \
    pyspark/jars/arpack* pyspark/jars/JTransforms-* pyspark/jars/JLargeArrays-*
# Hive with its database, YARN, the Scala shell. The table catalogue is in memory.
leave_out pyspark/jars/spark-hive* pyspark/jars/hive-[!s]* pyspark/jars/hive-s[!t]* pyspark/jars/derby* \
    pyspark/jars/datanucleus-* pyspark/jars/jdo-api-* pyspark/jars/javax.jdo-* pyspark/jars/HikariCP-* \
    pyspark/jars/commons-dbcp-* pyspark/jars/libthrift-* pyspark/jars/libfb303-* pyspark/jars/spark-yarn_* \
    pyspark/jars/spark-repl_* pyspark/jars/scala-compiler-* pyspark/jars/jline-*
# Streaming state and the history server's data on disk; coordination of standalone masters.
leave_out pyspark/jars/rocksdbjni-* pyspark/jars/leveldbjni-* pyspark/jars/curator-* pyspark/jars/zookeeper-*
# Native libraries for other operating systems and processors.
case $(uname -m) in aarch64) other=x86_64 ;; *) other=aarch_64 ;; esac
leave_out "pyspark/jars/netty-*-linux-$other.jar" 'pyspark/jars/netty-*-osx-*' \
    'pyspark/jars/netty-*-windows-*' 'pyspark/jars/netty-*-riscv64.jar'
# Arrow's access to remote storage and over the network, its headers and sources; tests.
leave_out 'pyarrow/*flight*' 'pyarrow/*_s3*' pyarrow/include pyarrow/src pyarrow/tests \
    matplotlib/tests
