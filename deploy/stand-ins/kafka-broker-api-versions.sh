#!/bin/sh
# The original asks the broker for the versions of its API. Its tools are not in the jars here: this asks for the broker's settings.
exec java -Xmx128m -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.properties -cp "/opt/kafka/libs/*" \
  kafka.admin.ConfigCommand "$@" --entity-type brokers --entity-name 1 --describe
