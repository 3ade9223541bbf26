from ddpjob_cli.main import main

main()
