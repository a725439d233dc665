"""None"""
